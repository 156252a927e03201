"""Candidates without a pipeline in the search: their bounds at a price of memory, and their plans."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from autopar.ir.errors import UnsupportedError
from autopar.passes.build import Encoded
from autopar.passes.found import UNLIMITED_BYTES
from autopar.passes.helper import Answer
from autopar.passes.outer import Candidate, Rung
from autopar.passes.paced import pace
from autopar.passes.pricing import Pricing
from autopar.passes.settled import peak_bytes
from autopar.passes.shortfall import Closest
from autopar.passes.solve import CLOSE, AnySolver, Solution
from autopar.passes.standing import LEANER, Best, Standing

Begun: TypeAlias = "tuple[tuple[Encoded, Pricing], AnySolver]"


# What is not cut over all devices takes so many times as much of their memory as one device alone would hold.
UNEVEN = 2
# What may be faster than the best plan by this factor is solved by all means, however slow what was found of it is.
GAINS = 1.05


@dataclass(eq=False)
class Plain:
    """Bounds and settles meshes of one stage; ``begun``: their solvers, to go on with."""

    standing: Standing
    begun: dict[Candidate, Begun] = field(default_factory=dict)
    peaks: dict[tuple[object, ...], int] = field(default_factory=dict)  # the latest, by problem and assignment

    def settle(self, candidate: Candidate, until: float = math.inf) -> tuple[Candidate | None, int | None]:
        """Solve one candidate within memory: by elimination alone, and when it is its turn again by all means.

        Returns it with its new bound if it may still become better, and what bounds more microbatches, None if these
        do no better. ``until``: a rank at which others come first, so that it is left as it is.
        """
        try:
            return self._settle(candidate, until)
        except UnsupportedError:
            if not candidate.uneven:
                raise
            self.standing.done(candidate, candidate.bound_ns)  # what it could have gained counts in the gap
            return None, None

    def _settle(self, candidate: Candidate, until: float) -> tuple[Candidate | None, int | None]:
        thorough = candidate.rung == Rung.LIMITED
        last_try = thorough or self.standing.limits.quick
        begun = self.begun.pop(candidate, None) or self._begin(candidate)
        if begun is None:
            return None, None
        encoded, solver = begun
        standing = self.standing
        budget, above = standing.limits.memory_bytes, standing.above(candidate)
        pause = candidate.bound_of(until)
        if above is not None and pause < above and not last_try:
            solution = standing.solved(solver, 0, pause)
            if solution.status == "dominated":
                standing.bounds.price = solution.price or standing.bounds.price
                paused = replace(candidate, bound_ns=max(solution.bound_ns, candidate.bound_ns), more=())
                self.begun[paused] = begun
                return paused, solution.free_bound_ns
        bound, done, ruled_out = 0, last_try, False
        for attempt in range(LEANER):
            if attempt:
                solver = standing.solver(encoded[0], budget)
            solution = standing.solved(solver, int(thorough), above)
            loose = solution.status == "feasible" and solution.bound_ns < (1 - CLOSE) * solution.objective_ns
            promising = above is not None and min(solution.objective_ns, solution.bound_ns * GAINS) <= above
            if thorough and loose and promising and not standing.limits.quick:
                solution = standing.solved(solver, 2, above)
            standing.bounds.price = solution.price or standing.bounds.price
            if attempt == 0:
                bound = solution.bound_ns if solution.status != "unknown" else candidate.bound_ns
                ruled_out = solution.status == "infeasible"
                done = done or solution.status in ("optimal", "dominated", "infeasible")
            fits = (
                solution.found
                and solution.status in ("optimal", "feasible", "dominated")
                and solution.bytes <= budget
            )
            over = self.peak(candidate, solution, encoded) - standing.limits.memory_bytes if solution.found else 0
            if not fits or over <= 0:
                break
            budget, fits = solution.bytes - over, False  # the sum is too small by what the walk finds
            if not last_try:
                done = False
                break
        if over > 0:
            solution = replace(solution, bytes=standing.limits.memory_bytes + over)
        objective_ns, paced = solution.objective_ns, None
        if fits and candidate.uneven:
            paced = pace(standing.bounds, encoded, candidate, solution)
            fits, objective_ns = paced is not None, 0 if paced is None else paced.finish_ns
        if fits and (above is None or objective_ns < above):
            standing.take(Best(candidate, solution, *encoded, objective_ns, paced=paced))
        standing.near(Closest(candidate, solution, *encoded, solution.bytes), solution.least_bytes)
        last = fits and solution.closed_by == "elimination" and solution.bound_ns <= candidate.bound_ns
        more = None if last else solution.free_bound_ns
        later = fits and loose and above is None and not standing.limits.quick  # others may be much better
        if done and not later:
            if not ruled_out:
                standing.done(candidate, bound, objective_ns if fits else None)
            return None, more
        again = replace(candidate, rung=Rung.LIMITED, bound_ns=max(bound, candidate.bound_ns), more=())
        self.begun[again] = begun
        return again, more

    def priced(self, candidate: Candidate) -> list[Candidate]:
        """A candidate with the bound that the price of memory gives, and one with more microbatches.

        Itself where its memory is ample; nothing if it cannot be placed.
        """
        standing, begun = self.standing, None

        def work() -> Answer | None:
            nonlocal begun
            begun = self._begin(candidate)
            if begun is None:
                return None
            at = begun[1]
            return Answer(at.bound_ns, at.evaluations, exact=True, binds=at.binds, free_ns=at.free_bound_ns)

        key = "priced", candidate.full.axes, candidate.count, candidate.uneven, standing.bounds.price
        found = standing.bounds.asked(key, work)
        if found is None:
            return []
        alone = replace(candidate, rung=Rung.PRICED)
        if found.binds:
            alone = replace(alone, bound_ns=max(candidate.bound_ns, found.bound_ns), more=(), late=True)
        if standing.may_improve(alone) and not standing.bounds.helper.here:
            self.begun[alone] = begun or self._again(candidate)
        larger = with_more(candidate, found.free_ns, hooked=False) if found.binds else None
        return [alone, *([] if larger is None else [larger])]

    def counted(self, candidate: Candidate, *, hooked: bool) -> None:
        """Settle a mesh for a quick search, by all means: with as many microbatches as its memory seems to ask for,
        with more while memory costs time, else with fewer while that is faster. With every number where prices are
        the user's own.
        """
        standing, counts = self.standing, (candidate.count, *candidate.more)
        enough = standing.limits.memory_bytes * standing.bounds.cluster.world_size // UNEVEN
        ample = standing.bounds.pooled.ample_bytes
        guess = next((at for at, n in enumerate(counts) if n * enough >= ample), len(counts) - 1)
        start = 0 if hooked else guess
        if not hooked:
            standing.done(candidate, candidate.bound_ns)  # of the numbers that are not tried
        for at in range(start, len(counts)):
            _, more = self.settle(replace(candidate, count=counts[at], rung=Rung.LIMITED, more=()))
            above = standing.above(candidate)
            if not hooked and (more is None or (above is not None and more >= above)):
                break
        for count in reversed(counts[:start] if at == start else ()):
            best = standing.best
            self.settle(replace(candidate, count=count, rung=Rung.LIMITED, more=()))
            if standing.best is best:
                break

    def peak(self, candidate: Candidate, solution: Solution, encoded: tuple[Encoded, Pricing]) -> int:
        """Most bytes that are held at once; where memory is ignored, about so many."""
        bounds, enough = self.standing.bounds, self.standing.limits.memory_bytes
        if enough >= UNLIMITED_BYTES:
            return solution.bytes
        key = encoded[0], solution.root, solution.calls
        if key not in self.peaks:
            self.peaks = {key: peak_bytes(bounds, encoded, candidate, solution, enough=enough)}  # seldom asked twice
        return self.peaks[key]

    def _begin(self, candidate: Candidate) -> Begun | None:
        encoded = self.standing.bounds.encode(candidate, None)
        if encoded is None:
            return None
        return encoded, self.standing.solver(encoded[0], self.standing.limits.memory_bytes)

    def _again(self, candidate: Candidate) -> Begun:
        """What the helper has begun with."""
        standing = self.standing
        before = standing.bounds.evaluations
        encoded = standing.bounds.again(candidate)
        assert encoded is not None
        solver = standing.solver(encoded[0], standing.limits.memory_bytes)
        standing.bounds.evaluations = before
        return encoded, solver


def with_more(candidate: Candidate, bound_ns: int, *, hooked: bool) -> Candidate | None:
    """With more microbatches, which never cost less time unless prices are the user's own; None if there are none."""
    if not candidate.more:
        return None
    first, *more = candidate.more
    larger = replace(candidate, count=first, more=tuple(more))
    if hooked:
        return replace(larger, rung=Rung.FEWEST, bound_ns=0)
    return replace(larger, bound_ns=max(larger.bound_ns, bound_ns))
