"""Search for good multipliers: a fixed number of evaluations, no wall clock.

lambda = 0 first: where memory is ample that is all. Then the price that a similar problem ended with, if there was
one: mostly it is enough to tell that this problem is no better. Then memory alone, which proves infeasibility or
gives an assignment that fits. Between two assignments (t0, m0) and (t1, m1) with m0 > memory >= m1 the next
lambda is the price at which both cost the same, (t1 - t0) / (m0 - m1); when no cheaper assignment turns up
at that price, lambda is the best one. First (7) is taken roughly, for the last steps exactly (``sharpen``).
Last, weight (8) is moved to instances whose transient is larger than the weighted mean, while that raises
the bound.
"""

from __future__ import annotations

from autopar.passes.solve.choice import Candidate, Multipliers
from autopar.passes.solve.progress import Progress
from autopar.passes.solve.relax import Evaluation, Relaxation
from autopar.passes.solve.sharpen import sharpen

STEPS = 12
SHARP_STEPS = 3
TIGHTEN_ROUNDS = 2
WEIGHT_ROUNDS = 3
FINE = 1e-3  # a sharp step after the first that raises the bound by a smaller part is the last


def search_multipliers(relaxation: Relaxation, progress: Progress, at: int, price: float) -> Evaluation:
    """Raise the bound of the shared state ``at`` as far as multipliers can, trying lambda = ``price`` early.

    Returns the evaluation with the best bound.
    """
    instances = len(relaxation.model.counts)
    first = _tighten(relaxation, progress, relaxation.free(), at)
    if first.candidate is None or first.candidate.memory <= progress.memory_bytes:
        return sharpen(relaxation, progress, first)
    heaviest = first.candidate.works.index(max(first.candidate.works))
    weights = _only(heaviest, instances)
    best = _search_memory(relaxation, progress, first, weights, price)
    for _ in range(WEIGHT_ROUNDS):
        if best is first or best.candidate is None or _done(progress, at) or progress.close(at):
            break
        means = best.candidate.mean_works
        mean = sum(w * x for w, x in zip(weights, means, strict=True))
        worst = means.index(max(means))
        if max(means) <= mean:
            break
        weights = tuple((w + x) / 2 for w, x in zip(weights, _only(worst, instances), strict=True))
        before = float(progress.floors[at])
        moved = _search_memory(relaxation, progress, first, weights, best.multipliers.memory)
        if progress.floors[at] <= before:
            break
        best = moved
    return best


def tighten(relaxation: Relaxation, progress: Progress) -> None:
    """Raise the bound at lambda = 0 by few values of mu."""
    _tighten(relaxation, progress, relaxation.free(), int(progress.free.argmin()))


def at_price(relaxation: Relaxation, progress: Progress, price: float) -> bool:
    """Whether the fastest assignment does not fit; then every shared state is bounded by lambda = ``price``."""
    first = relaxation.evaluate(relaxation.free())
    progress.note(first)
    if first.candidate is None or first.candidate.memory <= progress.memory_bytes:
        return False
    if price:
        weights = _only(first.candidate.works.index(max(first.candidate.works)), len(relaxation.model.counts))
        progress.note(relaxation.evaluate(Multipliers(memory=price, weights=weights)))
    return True


def _done(progress: Progress, at: int) -> bool:
    target = progress.target
    return progress.closed() or (target is not None and bool(progress.floors[at] >= target))


def _only(instance: int, instances: int) -> tuple[float, ...]:
    return tuple(float(i == instance) for i in range(instances))


def _tighten(relaxation: Relaxation, progress: Progress, m: Multipliers, at: int) -> Evaluation:
    found = relaxation.tighten(m, at=at, tolerance=progress.tolerance, rounds=TIGHTEN_ROUNDS)
    progress.note(found)
    return found


def _search_memory(
    relaxation: Relaxation, progress: Progress, first: Evaluation, weights: tuple[float, ...], price: float
) -> Evaluation:
    """The secant search over lambda at fixed weights, from the evaluation ``first`` at lambda = 0.

    ``price``: the lambda to begin with; 0: none is known.
    """
    limit, at = progress.memory_bytes, first.at
    if first.candidate is None:
        return first
    low, high = _point(first.candidate, weights), None
    best, best_value, sharp = first, -float("inf"), 0
    for _ in range(STEPS):
        given = bool(price)
        if not given:
            if high is None:
                least = relaxation.evaluate(Multipliers(time=0.0, memory=1.0, weights=weights), at=at)
                progress.note(least)
                if least.candidate is None or _done(progress, at):
                    break
                high = _point(least.candidate, weights)
            if high[1] >= low[1] or high[0] <= low[0]:
                break
            price = (high[0] - low[0]) / (low[1] - high[1])
        before = float(progress.floors[at])
        found = _tighten(relaxation, progress, Multipliers(memory=price, weights=weights), at)
        if sharp:
            found = sharpen(relaxation, progress, found)
        value = found.value - price * limit
        if value > best_value:
            best, best_value = found, value
        enough = progress.close(at) or (sharp > 1 and float(progress.floors[at]) < (1 + FINE) * before)
        if found.candidate is None or _done(progress, at) or sharp == SHARP_STEPS or (sharp and enough):
            break
        here = _point(found.candidate, weights)
        line = low[0] + price * (low[1] - limit)
        if sharp or (
            not given and here[0] + price * (here[1] - limit) >= line - max(progress.tolerance, 1e-9 * abs(line))
        ):
            sharp += 1
        if here[1] > limit:
            low = here
        else:
            high = here
        price = 0.0
    return best


def _point(candidate: Candidate, weights: tuple[float, ...]) -> tuple[float, float]:
    """Time and weighted memory."""
    works = sum(w * x for w, x in zip(weights, candidate.mean_works, strict=True))
    return float(candidate.time), candidate.held + works
