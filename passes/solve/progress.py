"""What is known so far: the best assignment that fits, the one of least memory, and the lower bounds.

The shared variables are branched on: calls of one chain may mix all other choices, but not these. So bounds
are kept per state of the shared variables, and the least of them bounds the problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from autopar.passes.problem import FloatArray
from autopar.passes.solve.choice import Candidate
from autopar.passes.solve.model import Model
from autopar.passes.solve.relax import Evaluation

NOTHING = -(1 << 62)

CLOSE = 5e-3
"""What may be slower than the best by this part only is not worked on much further."""


@dataclass(kw_only=True, eq=False)
class Progress:
    """Mutable state of one solve. Bounds only rise, the incumbent only gets faster.

    ``floors`` (ns) and ``least`` (bytes) are per shared state; infinite where nothing fits or is allowed.
    ``free`` (ns) are the floors with memory ignored.
    """

    model: Model
    memory_bytes: int
    upper_bound_ns: int | None
    gap: float
    floors: FloatArray = field(init=False)
    least: FloatArray = field(init=False)
    free: FloatArray = field(init=False)
    bound_ns: int = NOTHING
    incumbent: Candidate | None = None
    leanest: Candidate | None = None
    seen: list[Candidate] = field(default_factory=list)
    empty: bool = False
    _credit: tuple[float, float] = field(init=False)
    _depth: int = field(init=False)

    def __post_init__(self) -> None:
        states = math.prod(self.model.shared_shape)
        self.floors, self.free = np.full(states, -np.inf), np.full(states, -np.inf)
        self._credit = self.model.largest_credit()
        self.least = np.full(states, float(self.model.smallest_bytes()))
        self._depth = self.model.depth()

    def note(self, found: Evaluation) -> None:
        """Take over the bounds and the candidate of an evaluation."""
        m = found.multipliers
        self.empty = self.empty or not np.isfinite(found.floors).any()
        if found.candidate is not None:
            self.offer(found.candidate)
        slip = self.slip(found)
        if m.time:
            self.floors = np.maximum(self.floors, found.floors - m.memory * self.memory_bytes - slip)
            if not m.memory:
                self.free = np.maximum(self.free, found.floors - slip)
        else:
            self.least = np.maximum(self.least, found.floors - slip)
            self.floors[self.least > self.memory_bytes] = np.inf
        self._raise()

    def take_floors(self, other: Progress) -> None:
        """Take over what is proven of a problem that costs no more in any state."""
        self.floors = np.maximum(self.floors, other.floors)
        self.least, self.free = np.maximum(self.least, other.least), np.maximum(self.free, other.free)
        self._raise()

    def slip(self, found: Evaluation) -> float:
        """More than what rounding can have added to the bound of an evaluation.

        A sum of n terms is off by at most n 2^-52 times the sum of their magnitudes, and those of an
        assignment worth less than a value are at most that value plus twice its negative terms.
        """
        m = found.multipliers
        largest = float(np.abs(found.floors[np.isfinite(found.floors)]).max(initial=0.0))
        credit = m.time * self._credit[0] + m.memory * self._credit[1]
        paid = m.memory * abs(self.memory_bytes) if m.time else 0.0
        return self._depth * 2.0**-52 * (largest + 2 * credit + paid)

    def offer(self, candidate: Candidate) -> None:
        """Keep ``candidate``, as the fastest that fits or the leanest if it is."""
        self.seen.append(candidate)
        lean = (candidate.memory, candidate.time)
        if self.leanest is None or lean < (self.leanest.memory, self.leanest.time):
            self.leanest = candidate
        fits = candidate.memory <= self.memory_bytes
        if fits and (self.incumbent is None or candidate.time < self.incumbent.time):
            self.incumbent = candidate

    def raise_floor(self, at: int, value: float) -> None:
        """Take over a lower bound for one shared state; infinite: nothing with it fits."""
        self.floors[at] = max(float(self.floors[at]), value)
        if value == math.inf:
            self.least[at] = max(float(self.least[at]), self.memory_bytes + 1)
        self._raise()

    def _raise(self) -> None:
        lowest = float(self.floors.min())
        if math.isfinite(lowest):
            self.bound_ns = max(self.bound_ns, math.ceil(lowest))

    def close(self, at: int) -> bool:
        """Whether assignments with this shared state are not much faster than the fastest one known."""
        return self.incumbent is not None and bool(self.floors[at] >= (1 - CLOSE) * self.incumbent.time)

    @property
    def least_bytes(self) -> int:
        """Proven: every assignment needs at least this."""
        lowest = float(self.least.min())
        return math.ceil(lowest) if math.isfinite(lowest) else 0

    @property
    def free_bound_ns(self) -> int:
        """Proven: no assignment is faster, whatever memory there is; 0 where none is allowed."""
        lowest = float(self.free.min())
        return math.ceil(lowest) if math.isfinite(lowest) else 0

    @property
    def target(self) -> int | None:
        """Nothing at or above this is of interest: the incumbent's time or the caller's upper bound."""
        found = self.incumbent.time if self.incumbent else None
        return min((x for x in (found, self.upper_bound_ns) if x is not None), default=None)

    @property
    def tolerance(self) -> float:
        """The gap in nanoseconds that counts as closed."""
        target = self.target
        return self.gap * abs(target if target is not None else max(self.bound_ns, 0))

    @property
    def dominated(self) -> bool:
        """Whether the caller's upper bound is reached."""
        return self.upper_bound_ns is not None and self.bound_ns >= self.upper_bound_ns

    def infeasible(self) -> bool:
        """Whether every shared state is proven not to fit."""
        return self.empty or bool((self.floors == np.inf).all())

    def closed(self) -> bool:
        """Whether nothing more is to be done."""
        if self.infeasible() or self.dominated:
            return True
        best = self.incumbent
        return best is not None and best.time - self.bound_ns <= self.gap * abs(best.time)
