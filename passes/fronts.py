"""Ways to give many calls of a block their options, for what they hold and take together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autopar.passes.problem import IntArray
from autopar.passes.solve.columns import faster_with_more

MOST = 256  # ways that are told apart; of more, some between are left out


class Front(NamedTuple):
    """Ways, those that hold least first, each faster than all before: bytes, time, the way of one call fewer that each
    goes on from, and the option of the call that is added."""

    bytes: IntArray
    time_ns: IntArray
    before: IntArray
    option: IntArray


@dataclass(eq=False)
class Fronts:
    """Of calls that each have one of some options, which hold so many bytes and take so long: the front of none, of
    one, of two and so on within ``most_bytes``, worked out when they are asked for."""

    bytes: IntArray
    time_ns: IntArray
    most_bytes: int
    known: list[Front] = field(default_factory=lambda: [Front(*np.zeros((4, 1), dtype=np.int64))])

    def of(self, calls: int) -> Front:
        while len(self.known) <= calls:
            last = self.known[-1]
            sizes, times = np.add.outer(last.bytes, self.bytes), np.add.outer(last.time_ns, self.time_ns)
            at = told_apart(sizes.ravel(), times.ravel(), self.most_bytes)
            self.known.append(Front(sizes.ravel()[at], times.ravel()[at], *np.divmod(at, len(self.bytes))))
        return self.known[calls]

    def counts(self, calls: int, way: int) -> list[int]:
        """How many calls have each option, in one of the ways of so many."""
        found = [0] * len(self.bytes)
        for front in self.known[calls:0:-1]:
            found[front.option[way]] += 1
            way = int(front.before[way])
        return found


def told_apart(sizes: IntArray, times: IntArray, most_bytes: int) -> IntArray:
    """Which ways within so many bytes no other is better than, by their bytes; if these are many, so many of them with
    both ends."""
    fits = np.flatnonzero(sizes <= most_bytes)
    at = fits[faster_with_more(sizes[fits], times[fits])] if len(fits) else fits
    return at if len(at) <= MOST else at[np.linspace(0, len(at) - 1, MOST).round().astype(np.int64)]
