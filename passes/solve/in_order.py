"""A bound of stages of a model of several chains: each place takes calls in the order in which they run.

Greedy: T is too little where places that take one after the other as many calls as they can within T leave some. A
place with calls of one chain takes as long as these do alone, within its memory; one that goes on to the next chain as
long as what its calls of each take without their ends, and all else there, or as those of one do alone and the others
besides.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PRECISE = 1e-5  # of T
MOST_NS = float(1 << 60)


@dataclass(eq=False)
class Rungs:
    """Times of no call, of one, of two and so on, that are worked out when they are asked for."""

    later: Iterator[float]
    known: list[float] = field(default_factory=lambda: [0.0])

    def of(self, calls: int) -> float:
        while len(self.known) <= calls:
            self.known.append(max(self.known[-1], next(self.later)))
        return self.known[calls]

    def lift(self, calls: int, time_ns: float) -> None:
        """So many calls take no less than that, nor do more."""
        self.of(calls)
        self.known[calls:] = [max(time_ns, known) for known in self.known[calls:]]

    def within(self, time_ns: float, most: int) -> int:
        """How many calls, up to ``most``, take no longer."""
        while len(self.known) <= most and self.known[-1] <= time_ns:
            self.of(len(self.known))
        return min(bisect.bisect_right(self.known, time_ns) - 1, most)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stop:
    """So many places alike, by chain: their calls ``alone`` and what else takes time there (``own_ns``)."""

    count: int
    sent_ns: float
    own_ns: Sequence[float]
    alone: Sequence[Rungs]


def in_order_ns(stops: Sequence[Stop], walks: Sequence[Rungs], calls: Sequence[int], low_ns: float) -> float:
    """Least T, within ``PRECISE``, if it is more than ``low_ns``. By chain: ``walks``, what calls take without their
    ends; ``calls``, how many there are. Each place takes at least one."""

    def enough(time_ns: float) -> bool:
        chain, done, left = 0, 0, sum(calls)
        for number, stop in enumerate(each, 1):
            # those behind it have one each
            taken = min(_most(stop, walks, calls, chain, done, time_ns), left - (len(each) - number))
            if taken <= 0:
                return False
            left, done = left - taken, done + taken
            while chain < len(calls) and done >= calls[chain]:
                chain, done = chain + 1, done - calls[chain]
        return not left

    each = [stop for stop in stops for _ in range(stop.count)]
    low, high = low_ns, max(low_ns, 1.0) * (1 + PRECISE)
    while not enough(high):
        low, high = high, high * 2 - low_ns
        if high > MOST_NS:
            return low_ns
    while high - low > PRECISE * low and low > low_ns:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low


def _most(
    stop: Stop, walks: Sequence[Rungs], calls: Sequence[int], chain: int, done: int, time_ns: float
) -> int:  # fmt: skip
    """How many calls a place can take behind so many of a chain that are taken."""
    rest = calls[chain] - done
    total = stop.alone[chain].within(time_ns, rest)
    if total < rest:
        return total
    # what those so far take at least, and what they do within memory with all else there
    before, most = walks[chain].of(rest), stop.alone[chain].of(rest)
    own = stop.own_ns[chain]
    for after in range(chain + 1, len(calls)):
        own = max(own, stop.own_ns[after])
        alone = stop.alone[after].within(time_ns - before, calls[after])
        taken = walks[after].within(time_ns - max(stop.sent_ns + own + before, most), alone)
        if taken < calls[after]:
            return total + max(0, taken)
        one = walks[after].of(taken)
        most = max(most + one, before + stop.alone[after].of(taken))
        before, total = before + one, total + taken
    return total
