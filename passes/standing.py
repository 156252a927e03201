"""How far a search is: the best plan, what was proven of all others, and what came closest where nothing fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autopar.passes.bounds import Bounds
from autopar.passes.build import Encoded
from autopar.passes.found import UNLIMITED_BYTES, Limits, Tried
from autopar.passes.outer import Candidate
from autopar.passes.pipelining import Arrangement
from autopar.passes.pricing import Pricing
from autopar.passes.shares import Paced
from autopar.passes.shortfall import Closest
from autopar.passes.solve import AnySolver, Solution, solver_of

# Leaner placements that are tried for one candidate before it is taken not to fit.
LEANER = 8
# Memory binds where it makes the best plan so much slower.
BINDS = 1.02


@dataclass(frozen=True, eq=False)
class Best:
    """The best plan so far. ``paced``: with unequal shares of the batch."""

    candidate: Candidate
    solution: Solution
    encoded: Encoded
    pricing: Pricing
    objective_ns: int
    cut: Arrangement | None = None
    paced: Paced | None = None


@dataclass(eq=False)
class Standing:
    """``best_ns``: of the best, with its handicap. ``least_bytes``: that any plan was proven to need. ``tried``:
    candidates that are done with."""

    bounds: Bounds
    limits: Limits
    best_ns: float = math.inf
    best: Best | None = None
    closest: Closest | None = None
    least_bytes: int = UNLIMITED_BYTES
    tried: list[Tried] = field(default_factory=list)

    def above(self, candidate: Candidate) -> int | None:
        """What is no better than the best plan, as a bound of the candidate; None while there is none."""
        return None if math.isinf(self.best_ns) else candidate.bound_of(self.best_ns)

    def may_improve(self, candidate: Candidate) -> bool:
        """Whether a candidate may be faster than the best plan."""
        return candidate.rank[0] < self.best_ns

    def solver(self, encoded: Encoded, memory_bytes: int) -> AnySolver:
        """Knowing what memory was worth last."""
        most = self.bounds.most_joined
        made = solver_of(encoded.problem, memory_bytes=memory_bytes, price=self.bounds.price, most_joined=most)
        self.bounds.evaluations += made.evaluations
        return made

    def solved(self, solver: AnySolver, effort: int, above: int | None = None) -> Solution:
        before = solver.evaluations
        found = solver.solution(effort, upper_bound_ns=above)
        self.bounds.evaluations += solver.evaluations - before
        return found

    def take(self, best: Best) -> None:
        """Keep a plan that is better than all before."""
        self.best, self.best_ns = best, best.objective_ns * best.candidate.handicap
        time_ns = best.objective_ns if best.paced is None else best.solution.objective_ns
        slower = time_ns > best.solution.free_bound_ns * BINDS and best.solution.price > 0
        rungs = not self.bounds.own_only and not self.limits.quick  # that know of memory are climbed
        self.bounds.binds = best.cut is None and slower and rungs

    def done(self, candidate: Candidate, bound_ns: float, objective_ns: int | None = None) -> None:
        """Nothing more is asked of a candidate; ``objective_ns``: of the plan that was found with it."""
        self.tried.append(Tried(
            full=candidate.full, microbatches=candidate.count, schedule=candidate.schedule, bound_ns=int(bound_ns),
            objective_ns=objective_ns, uneven=candidate.uneven,
        ))  # fmt: skip

    def near(self, found: Closest, least_bytes: int) -> None:
        """Remember a placement that did not fit, by what it needs of one place."""
        self.least_bytes = min(self.least_bytes, least_bytes)
        if self.closest is None or found.bytes < self.closest.bytes:
            self.closest = found
