"""How many microbatches each device takes of a step, where devices differ: the allocation that ends first.

    Data       units, and for each device d: finish_ns[d](u), when it has done u of them, most[d], as many as it holds
    Variables  u[d], a whole number
    Minimise   max over d of finish_ns[d](u[d])                      (1)
    Subject to sum over d of u[d] = units                            (2)
               least <= u[d] <= most[d]                              (3)
    Requires   finish_ns[d] never falls

Every device begins with ``least``; each unit that is left goes to the device with room that would end it first. That
is optimal. Say another allocation v ends everything before the greedy one, u, ends, and d is a device of u that ends
last. If u[d] = least, v ends no earlier, since v[d] >= least. Else v[d] < u[d], so by (2) some device e has
v[e] > u[e]: it had room when d took its last unit, and had then no more than u[e]. Since d was taken, e would have
ended its next unit no earlier than d ended; v[e] has that unit, and so v ends no earlier than u: a contradiction.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Taker:
    """A device. ``finish_ns``: when it has done so many units; never falls. ``most``: units that its memory allows."""

    finish_ns: Callable[[int], int]
    most: int


@dataclass(frozen=True, kw_only=True)
class Paced:
    """A step of unequal ``shares``, microbatches by rank: one on ``device`` ends last, after ``count``."""

    shares: tuple[int, ...]
    device: str
    count: int
    finish_ns: int


def allocate(units: int, takers: Sequence[Taker], *, least: int = 1) -> tuple[int, ...] | None:
    """Units of each device, in order; of equal ones the first takes what does not divide. None where nothing fits."""
    if any(taker.most < least for taker in takers) or not least * len(takers) <= units:
        return None
    if sum(min(taker.most, units) for taker in takers) < units:
        return None
    taken = [least] * len(takers)
    waiting = [(taker.finish_ns(least + 1), at) for at, taker in enumerate(takers) if taker.most > least]
    heapq.heapify(waiting)
    for _ in range(units - least * len(takers)):
        _, at = heapq.heappop(waiting)
        taken[at] += 1
        if taken[at] < takers[at].most:
            heapq.heappush(waiting, (takers[at].finish_ns(taken[at] + 1), at))
    return tuple(taken)


def most_within(budget_bytes: int, held_bytes: Callable[[int], int], units: int) -> int:
    """The most units, of ``units`` at most, with which a device holds no more than its budget; 0 if not even one.

    Requires: ``held_bytes`` never falls.
    """
    low, high = 0, units
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if held_bytes(middle) <= budget_bytes else (low, middle - 1)
    return low
