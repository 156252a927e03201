"""Recomputation by place: a pipeline's first place holds most microbatches in flight, its last place one.

A solution takes every call of a block to hold as many microbatches as the places do on average. Here each call keeps
its placements and takes, of its block's modes with the same ZeRO, what its own place has memory for; places that
recompute less take more calls. The slowest place is made as fast as this can make it:

    T is enough  if  each place in turn, taking as many calls as it can run within T and its memory, leaves none

and the least such T is found by bisection.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from autopar.ir.errors import IRError
from autopar.passes.build import Encoded
from autopar.passes.candidate import Mode
from autopar.passes.fronts import Fronts, told_apart
from autopar.passes.pipelining import Shape, Unit, transfer_ns
from autopar.passes.placements import Placements
from autopar.passes.pricing import Pricing
from autopar.passes.problem import IntArray, Problem
from autopar.passes.solve import Solution
from autopar.passes.solve.check import measure_assignment, measure_instance
from autopar.passes.solve.columns import faster_with_more
from autopar.passes.units import Cost, call_cost

# The chain, and the values of its block's variables.
Kind: TypeAlias = tuple[int, tuple[int, ...]]

PRECISE = 1e-4  # of the slowest place's time
MOST_WAYS = 300  # to choose modes of a place's calls, all of which are tried; of more those are taken that save most


@dataclass(frozen=True, kw_only=True)
class Option:
    """A mode that a call may have, and what it then costs. ``values``: of its block's variables."""

    values: tuple[int, ...]
    cost: Cost

    def bytes(self, live: float) -> int:
        return self.cost.held_bytes + round(live * self.cost.saved_bytes)


class Ways(NamedTuple):
    """Of calls of each kind, those that hold least first, each faster than all before: bytes with what is held in
    passing, time, and by kind which. ``passing``: what of the bytes is held in passing, at least."""

    bytes: list[int]
    time_ns: list[int]
    which: list[tuple[int, ...]]
    passing: int


def by_place(
    lean: Encoded, full: Encoded, solution: Solution, units: Sequence[Unit], shape: Shape, pricing: Pricing,
    memory_bytes: Sequence[int], placements: Placements | None = None,
) -> Solution | None:  # fmt: skip
    """The solution with the modes of each call chosen anew, its numbers as before; None where that changes nothing.

    ``lean``, ``full``: its problem with nothing and with one microbatch saved. ``units``: each begins with a call.
    ``memory_bytes``: of each place. ``placements``: others that calls may have.
    """
    runs = [(chain, values) for chain, known in enumerate(solution.calls) for n, values in known for _ in range(n)]
    if shape.loops > 1 or len(runs) != len(units) or len(units) < shape.places:
        return None
    kinds = list(dict.fromkeys(runs))
    transfers = [2 * shape.microbatches * transfer_ns(unit.entering_bytes, pricing) for unit in units]
    choices, costs = _choices(lean, full, kinds, placements), [call_cost(lean, full, *one) for one in kinds]
    options = list(dict.fromkeys(choices))
    at = [kinds.index(one) for one in runs]
    places = Places(
        units, [options.index(choices[kind]) for kind in at], options, [costs[kind] for kind in at], shape, transfers,
        memory_bytes,
    )  # fmt: skip
    ends = places.cut()
    if ends is None:
        return None
    spans = enumerate(itertools.pairwise([0, *ends]))
    chosen = [values for place, span in spans for values in places.values(place, *span)]
    if chosen == [values for _, values in runs]:
        return None
    left, calls = iter(chosen), []
    for known in solution.calls:
        own = list(itertools.islice(left, sum(repeat for repeat, _ in known)))
        calls.append(tuple((len(list(same)), values) for values, same in itertools.groupby(own)))
    return replace(solution, calls=tuple(calls))


def remeasured(problem: Problem, solution: Solution) -> Solution:
    """The solution with the numbers of its own assignment."""
    totals = measure_assignment(problem, solution.root, solution.calls)
    return replace(
        solution, objective_ns=totals.objective_ns, bytes=totals.bytes, transient_bytes=totals.transient_bytes
    )


def _choices(
    lean: Encoded, full: Encoded, kinds: Sequence[Kind], placements: Placements | None
) -> list[tuple[Option, ...]]:  # fmt: skip
    """Of each kind its own options, and those of others of its chain that are given and give the same layouts."""
    alike: dict[object, dict[tuple[int, ...], Option]] = {}
    keys = []
    for number, values in kinds:
        chain = lean.problem.chains[number]
        mode = lean.variables[chain.segment.name][0].values[values[0]]
        assert isinstance(mode, Mode)
        border = tuple(values[variable] for variable in (*chain.inputs, *chain.outputs, *chain.shared))
        keys.append((number, border, mode.zero, mode.inside))
        found = alike.setdefault(keys[-1], {})
        if values not in found:
            found.update((option.values, option) for option in _options(lean, full, number, values))
            for other in placements.like(number, values) if placements else ():
                if other not in found and _alike(lean, number, mode, other):
                    found[other] = Option(values=other, cost=call_cost(lean, full, number, other))
    return [tuple(alike[key].values()) for key in keys]


def _options(lean: Encoded, full: Encoded, chain: int, values: tuple[int, ...]) -> Iterator[Option]:
    """The call's modes with the ZeRO that it has; variable 0 is the mode."""
    segment = lean.problem.chains[chain].segment
    modes = lean.variables[segment.name][0].values
    own = modes[values[0]]
    assert isinstance(own, Mode)
    for index in range(len(modes)):
        changed = (index, *values[1:])
        if _alike(lean, chain, own, changed):
            yield Option(values=changed, cost=call_cost(lean, full, chain, changed))


def _alike(lean: Encoded, chain: int, own: Mode, values: tuple[int, ...]) -> bool:
    """Whether a call may be placed so, with the ZeRO that it has; what is kept may not be to be had in each mode."""
    segment = lean.problem.chains[chain].segment
    mode = lean.variables[segment.name][0].values[values[0]]
    if not isinstance(mode, Mode) or (mode.zero, mode.inside) != (own.zero, own.inside):
        return False
    try:
        measure_instance(segment, values)
    except IRError:
        return False
    return True


def _useful(options: Sequence[Option], live: float) -> list[Option]:
    """From the option that holds least on, those that are faster than all before."""
    found: list[Option] = []
    for one in sorted(options, key=lambda one: (one.bytes(live), one.cost.time_ns)):
        if not found or one.cost.time_ns < found[-1].cost.time_ns:
            found.append(one)
    return found


@functools.lru_cache(maxsize=256)
def _shared(options: int, calls: int) -> IntArray:
    """[way, option]: every way to share calls out among options."""
    ways = itertools.combinations_with_replacement(range(options), calls)
    return np.array([[way.count(option) for option in range(options)] for way in ways], dtype=np.int64)


class Places:
    """``kinds[i]``: of which kind unit i's call is, ``now[i]`` what it costs as it is; by kind its ``options``."""

    def __init__(
        self, units: Sequence[Unit], kinds: Sequence[int], options: Sequence[Sequence[Option]], now: Sequence[Cost],
        shape: Shape, transfers: Sequence[int], memory_bytes: Sequence[int],
    ) -> None:  # fmt: skip
        self.units, self.kinds, self.shape, self.transfers = units, kinds, shape, transfers
        self.memory_bytes = memory_bytes
        self.counts = [[0, *itertools.accumulate(int(own == kind) for own in kinds)] for kind in range(len(options))]
        rest = [
            [unit.time_ns - cost.time_ns for unit, cost in zip(units, now, strict=True)],
            [unit.held_bytes - cost.held_bytes for unit, cost in zip(units, now, strict=True)],
            [unit.saved_bytes - cost.saved_bytes for unit, cost in zip(units, now, strict=True)],
        ]
        self.time, self.held, self.saved = ([0, *itertools.accumulate(each)] for each in rest)
        # in passing, of what is no call, if that is more than its call holds so far
        self.passing = [
            unit.transient_bytes if unit.transient_bytes > cost.transient_bytes else 0
            for unit, cost in zip(units, now, strict=True)
        ]
        self.useful = [
            [_useful(known, shape.live(place)) for known in options] for place in range(shape.places)
        ]
        self.fronts = [
            [
                Fronts(
                    np.array([one.bytes(shape.live(place)) for one in known]),
                    np.array([one.cost.time_ns for one in known]),
                    memory_bytes[place],
                )
                for known in choices
            ]
            for place, choices in enumerate(self.useful)
        ]  # fmt: skip
        # the least and the most that calls of a kind hold in passing
        sizes = [[one.cost.transient_bytes for one in known] for known in options]
        self.ranges = [(min(each), max(each)) for each in sizes]
        self.known: dict[tuple[int, ...], Ways] = {}

    def cut(self) -> list[int] | None:
        """Where each place ends; None where there is not memory enough."""
        low, high = 0, sum(unit.time_ns for unit in self.units) + 2 * max(self.transfers)
        found = self.within(high)
        while found is not None and high - low > max(1, PRECISE * high):
            middle = (low + high) // 2
            ends = self.within(middle)
            if ends is None:
                low = middle
            else:
                found, high = ends, middle
        return found

    def within(self, most_ns: int) -> list[int] | None:
        """Where each place ends that takes all it can in this time; None if something is left."""
        ends, first, count, places = list[int](), 0, len(self.units), self.shape.places
        for place in range(places):
            last = count - (places - 1 - place)
            # the last end up to which it can: fewer calls never take longer
            low, high = first, last
            while low < high:
                middle = (low + high + 1) // 2
                found = self.filled(place, first, middle)
                low, high = (middle, high) if found is not None and found[0] <= most_ns else (low, middle - 1)
            if low == first:
                return None
            ends.append(low)
            first = low
        return ends if first == count else None

    def filled(self, place: int, first: int, after: int) -> tuple[int, tuple[int, ...]] | None:
        """Least time of some units at a place, and which way; None where they do not fit."""
        live, count = self.shape.live(place), len(self.units)
        time = self.time[after] - self.time[first]
        left = self.memory_bytes[place] - (self.held[after] - self.held[first])
        left -= round(live * (self.saved[after] - self.saved[first]))
        borders = [at for at in (first, after) if 0 < at < count]
        time += sum(self.transfers[at] for at in borders)
        entering, leaving = (self.units[at].entering_bytes if at in borders else 0 for at in (first, after))
        left -= self.shape.received_bytes(place, entering, leaving)
        calls = [known[after] - known[first] for known in self.counts]
        passing = max(self.passing[first:after])
        ways = self.ways(place, *calls)
        left -= max(0, passing - ways.passing)
        at = bisect.bisect_right(ways.bytes, left) - 1
        return None if at < 0 else (time + ways.time_ns[at], ways.which[at])

    def ways(self, place: int, *calls: int) -> Ways:
        """Of so many calls of each kind."""
        key = place, *calls
        if key not in self.known:
            self.known[key] = self._all(place, calls) if self._few(place, calls) else self._many(place, calls)
        return self.known[key]

    def _few(self, place: int, calls: Sequence[int]) -> bool:
        """Whether all ways are tried."""
        each = (math.comb(len(known) + n - 1, n) for known, n in zip(self.useful[place], calls, strict=True))
        return math.prod(each) <= MOST_WAYS

    def _all(self, place: int, calls: Sequence[int]) -> Ways:
        sizes = times = passing = np.zeros(1, dtype=np.int64)
        numbers = list[int]()
        for known, own, n in zip(self.useful[place], self.fronts[place], calls, strict=True):
            shared = _shared(len(known), n)
            most = np.where(shared > 0, [one.cost.transient_bytes for one in known], 0).max(axis=1)
            sizes = np.add.outer(sizes, shared @ own.bytes).ravel()
            times = np.add.outer(times, shared @ own.time_ns).ravel()
            passing = np.maximum.outer(passing, most).ravel()
            numbers.append(len(shared))
        sizes = sizes + passing
        at = faster_with_more(sizes, times)
        which = [*zip(*(rows.tolist() for rows in np.unravel_index(at, numbers)), strict=True)]
        least = min(known[0] for known, n in zip(self.ranges, calls, strict=True) if n)
        return Ways(sizes[at].tolist(), times[at].tolist(), which, least)

    def _many(self, place: int, calls: Sequence[int]) -> Ways:
        """As if all held as much in passing as any of their options."""
        sizes = times = np.zeros(1, dtype=np.int64)
        which = np.zeros((0, 1), dtype=np.int64)
        for fronts, n in zip(self.fronts[place], calls, strict=True):
            front = fronts.of(n)
            sums, total = (np.add.outer(*both).ravel() for both in ((sizes, front.bytes), (times, front.time_ns)))
            at = told_apart(sums, total, self.memory_bytes[place])
            before, own = np.divmod(at, len(front.bytes))
            sizes, times, which = sums[at], total[at], np.vstack([which[:, before], own])
        most = max(known[1] for known, n in zip(self.ranges, calls, strict=True) if n)
        return Ways((sizes + most).tolist(), times.tolist(), [*map(tuple, which.T.tolist())], most)

    def values(self, place: int, first: int, after: int) -> Iterator[tuple[int, ...]]:
        """Of each call, those that hold least first."""
        found = self.filled(place, first, after)
        assert found is not None
        calls = [known[after] - known[first] for known in self.counts]
        queues = [*self._chosen(place, calls, found[1])]
        for at in range(first, after):
            yield queues[self.kinds[at]].pop(0)

    def _chosen(self, place: int, calls: Sequence[int], which: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
        """By kind the values of each call, in one of the ways."""
        few = self._few(place, calls)
        for known, fronts, n, way in zip(self.useful[place], self.fronts[place], calls, which, strict=True):
            counts = _shared(len(known), n)[way].tolist() if few else fronts.counts(n, way)
            yield [one.values for one, number in zip(known, counts, strict=True) for _ in range(number)]
