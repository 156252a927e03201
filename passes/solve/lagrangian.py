"""Search for good multipliers: a fixed number of evaluations, no wall clock.

lambda = 0 first: where memory is ample that is all. Then the price that a similar problem ended with, if there was
one: mostly it is enough to tell that this problem is no better. Then, again and again, the multipliers at which the
assignments known so far prove most (``steepest``), price and weights (8) at once; where memory alone decides, these
prove infeasibility or give an assignment that fits. When no cheaper assignment turns up, the multipliers are the best.
First (7) is taken roughly, for the last steps exactly (``sharpen``).
"""

from __future__ import annotations

import math

from autopar.passes.solve.choice import Candidate, Multipliers
from autopar.passes.solve.progress import Progress
from autopar.passes.solve.relax import Evaluation, Relaxation
from autopar.passes.solve.sharpen import sharpen
from autopar.passes.solve.steepest import steepest

STEPS = 20
SHARP_STEPS = 3
TIGHTEN_ROUNDS = 2
WEIGHED = 2  # weights that are tried at a price that is given
FINE = 1e-3  # a sharp step after the first that raises the bound by a smaller part is the last
FOUND = 1e-4  # multipliers are the best where others may prove more by this part only


def search_multipliers(relaxation: Relaxation, progress: Progress, at: int, price: float) -> Evaluation:
    """Raise the bound of the shared state ``at`` as far as multipliers can, trying lambda = ``price`` early.

    Returns the evaluation with the best bound.
    """
    first = _tighten(relaxation, progress, relaxation.free(), at)
    if first.candidate is None or first.candidate.memory <= progress.memory_bytes:
        return sharpen(relaxation, progress, first)
    model, instances = relaxation.model, len(relaxation.model.counts)
    best, best_value, sharp = first, -math.inf, 0
    for step in range(STEPS):
        if step or not price:
            here = (c for c in progress.seen if model.shared_state(c.root) == at)
            m, most_ns = steepest(here, instances, progress.memory_bytes)
        else:
            m, most_ns = _of_heaviest(progress.leanest or first.candidate, price), math.inf
        if not m.time:
            progress.note(relaxation.evaluate(m, at=at))
            if _done(progress, at):
                break
            continue
        before = float(progress.floors[at])
        found = _tighten(relaxation, progress, m, at)
        least_ns = most_ns - max(progress.tolerance, FOUND * abs(most_ns))
        if sharp or found.value + found.slack - m.memory * progress.memory_bytes >= least_ns:
            found = sharpen(relaxation, progress, found)
            sharp += 1
        value = found.value - m.memory * progress.memory_bytes
        if value > best_value:
            best, best_value = found, value
        enough = progress.close(at) or (sharp > 1 and float(progress.floors[at]) < (1 + FINE) * before)
        if found.candidate is None or _done(progress, at) or sharp == SHARP_STEPS or (sharp and enough):
            break
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
    candidate: Candidate | None = first.candidate
    weighed: list[Multipliers] = []
    while price and candidate is not None and len(weighed) < WEIGHED:
        m = _of_heaviest(candidate, price)
        if m in weighed:
            break
        weighed.append(m)
        found = relaxation.evaluate(m)
        progress.note(found)
        candidate = found.candidate
    return True


def _of_heaviest(candidate: Candidate, price: float) -> Multipliers:
    """All weight on the instance that holds most in passing."""
    heaviest = candidate.works.index(max(candidate.works))
    return Multipliers(memory=price, weights=tuple(float(i == heaviest) for i in range(len(candidate.works))))


def _done(progress: Progress, at: int) -> bool:
    target = progress.target
    floor = float(progress.floors[at])
    return progress.closed() or math.isinf(floor) or (target is not None and floor >= target)


def _tighten(relaxation: Relaxation, progress: Progress, m: Multipliers, at: int) -> Evaluation:
    found = relaxation.tighten(m, at=at, tolerance=progress.tolerance, rounds=TIGHTEN_ROUNDS)
    progress.note(found)
    return found
