"""Bounds on outer choices within memory: one device, or one axis alone, that has the memory of all.

Devices hold together what one would, or more: so one with the memory of all bounds every mesh with as many
microbatches (also a pipeline, which holds at least one of them), and says which numbers are slow for want of memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from autopar.ir.mesh import Mesh
from autopar.passes.candidates import microbatch_counts
from autopar.passes.extents import extents
from autopar.passes.found import UNLIMITED_BYTES, UNREACHABLE_NS
from autopar.passes.helper import Answer
from autopar.passes.outer import Candidate, Rung
from autopar.passes.solve import solve, solver_of

if TYPE_CHECKING:
    from autopar.passes.bounds import Bounds

# Microbatches that cost so much more than most of them, for want of memory, are not tried first.
NEAR = 1.001
# A bound that grows by less than this, for want of memory, tells too little to be worked out for more numbers of them.
LITTLE = 1.005

# Axis, its size, number of microbatches, and whether other axes lie inside.
Key: TypeAlias = tuple[str, int, int, bool]


@dataclass(eq=False)
class PooledBounds:
    """Each is worked out once."""

    bounds: Bounds
    known: dict[Key, int] = field(default_factory=dict)
    ample: set[Key] = field(default_factory=set)  # with which memory is no matter
    price: float = 0.0  # of memory (ns a byte), where it first bound; no other, so that they follow from it alone

    @cached_property
    def ample_bytes(self) -> int:
        """What one device that does everything holds, if nothing is done to hold less; of one microbatch."""
        encoded = self.bounds.encode(self.bounds.alone("dp", 1), None, ample=True, alone=True)
        return 0 if encoded is None else solve(encoded[0].problem, memory_bytes=UNLIMITED_BYTES, effort=0).bytes

    @cached_property
    def ladder(self) -> tuple[int, ...]:
        """Numbers of microbatches that may be worked out, whoever asks for them."""
        return microbatch_counts(extents(self.bounds.model)[0] or 1, 1)

    def by_count(self, candidate: Candidate) -> list[Candidate]:
        """The candidate without numbers of microbatches that are surely slow for want of memory, and each of those."""
        counts = (candidate.count, *candidate.more)
        if self.bounds.own_only or len(counts) == 1:
            return [candidate]
        bounds = [self.share_ns(candidate.mesh, None, count) for count in counts]
        first = next(at for at, bound in enumerate(bounds) if bound <= NEAR * min(bounds))
        return [replace(candidate, count=counts[first], more=counts[first + 1 :]), *self._each(candidate, first)]

    def counted(self, candidate: Candidate) -> list[Candidate]:
        """One candidate for each of its numbers of microbatches, that first of which memory is no matter any more."""
        each = self.each_count(candidate)
        least = min(one.bound_ns for one in each)
        first = next(one for one in each if one.bound_ns <= NEAR * least)
        return [replace(one, late=one is not first) for one in each]

    def first_count(self, candidate: Candidate) -> list[Candidate]:
        """The candidate with its first number of microbatches alone, and with all others, whose own bound is next."""
        first, *_ = self._each(candidate, 1)
        count, *more = candidate.more
        least = min(self.share_ns(candidate.mesh, None, n) for n in candidate.more)
        others = replace(
            candidate, count=count, fewest=count, more=tuple(more), rung=Rung.AXIS, late=True,
            bound_ns=max(candidate.bound_ns, least),
        )  # fmt: skip
        return [first, others]

    def each_count(self, candidate: Candidate) -> list[Candidate]:
        """One candidate for each of its numbers of microbatches."""
        return self._each(candidate, 1 + len(candidate.more))

    def _each(self, candidate: Candidate, counts: int) -> list[Candidate]:
        numbers = (candidate.count, *candidate.more)[:counts]
        alone = [replace(candidate, count=count, more=(), late=True) for count in numbers]
        return [
            replace(one, bound_ns=max(one.bound_ns, self.share_ns(one.mesh, None, one.count))) for one in alone
        ]

    def least_share_ns(self, candidate: Candidate) -> int:
        """Over its numbers of microbatches, of which the most hold least; 0 once one tells little more than before."""
        least = UNREACHABLE_NS
        counts = candidate.count, *candidate.more
        for count in sorted(counts, key=lambda count: (("dp", 1, count, False) not in self.known, count)):
            least = min(least, self.share_ns(candidate.mesh, None, count))
            if least <= LITTLE * candidate.bound_ns:
                return 0
        return least

    def begin(self, candidate: Candidate) -> bool:
        """Work out what ``least_share_ns`` asks first, which tells the price of memory; False where it is known."""
        if self.known or self.bounds.own_only:
            return False
        self.share_ns(candidate.mesh, None, max(candidate.count, *candidate.more, 1))
        return True

    def share_ns(self, mesh: Mesh, axis: str | None, count: int) -> int:
        """One stage's time if an axis alone, or one device, did all work in so many microbatches with all memory.

        An axis with others inside may hold pieces that do not lie together.
        """
        world = math.prod(size for _, size in mesh.axes)
        size = 1 if axis is None else mesh.size(axis)
        inner = axis is not None and axis != mesh.names[-1]
        return self._pooled_ns(axis or "dp", size, count, inner=inner) * size // world

    def _pooled_ns(self, axis: str, size: int, count: int, *, inner: bool) -> int:
        key = axis, size, count, inner
        if key not in self.known:
            ample = self._ample_with_fewer(*key)
            if ample is not None:  # more take no less time
                self.ample.add(key)
                self.known[key] = self.known[ample]
                return self.known[key]
            free = self.bounds.free_ns(self.bounds.alone(axis, size), alone=True) or 0 if size == 1 else 0
            answer = self.bounds.asked(("pooled", key, self.price), lambda: self._solved(*key))
            if answer is not None:
                self.price = self.price or answer.price
                self.bounds.price = self.bounds.price or self.price
                self.ample.update([] if answer.binds else [key])
            self.known[key] = max(free, 0 if answer is None else answer.bound_ns)
        return self.known[key]

    def _ample_with_fewer(self, axis: str, size: int, count: int, inner: bool) -> Key | None:
        """The nearest smaller number of microbatches that is known, if memory is no matter with it.

        Of one device those between are worked out first, the fewest first, since many candidates ask for them.
        """
        fewer = [n for n in self.ladder if n < count]
        known = [at for at, n in enumerate(fewer) if (axis, size, n, inner) in self.known]
        for n in fewer[known[-1] :] if known else ():
            key = axis, size, n, inner
            if size > 1 and key not in self.known:
                return None
            self._pooled_ns(axis, size, n, inner=inner)
            if key in self.ample:
                return key
        return None

    def _solved(self, axis: str, size: int, count: int, inner: bool) -> Answer | None:
        one = replace(self.bounds.alone(axis, size), count=count)
        encoded = self.bounds.encode(one, None, pooled=True, inner=inner, alone=True)
        if encoded is None:
            return None
        memory = self.bounds.memory_bytes * self.bounds.cluster.world_size // size
        solver = solver_of(encoded[0].problem, memory_bytes=memory, price=self.price)
        found = solver.solution(0) if size == 1 else None
        self.bounds.evaluations += solver.evaluations
        if found is not None and found.status == "infeasible":
            return Answer(UNREACHABLE_NS, solver.evaluations, exact=True)
        price = 0.0 if found is None else found.price
        return Answer(max(solver.bound_ns, 0), solver.evaluations, exact=True, price=price, binds=solver.binds)
