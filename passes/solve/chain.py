"""The (min, +) power of a block's table: a chain of n calls in O(log n) products.

A block table has shape (shared, in, out); products are taken per shared assignment. Which middle state a
product went through is looked up afterwards, only along the path that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autopar.passes.problem import FloatArray

Runs = tuple[tuple[int, int, int], ...]
"""Run-length encoded steps of a path: (repeat, in state, out state)."""


def min_plus(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return c[s, i, j] = min over k of a[s, i, k] + b[s, k, j]."""
    best = a[:, :, 0, None] + b[:, 0, None, :]
    for k in range(1, a.shape[2]):
        np.minimum(best, a[:, :, k, None] + b[:, k, None, :], out=best)
    return best


@dataclass(frozen=True, kw_only=True, eq=False)
class Power:
    """A matrix to a power, as the product of two smaller powers (none for the block itself)."""

    count: int
    table: FloatArray
    halves: tuple[Power, Power] | None = None
    _paths: dict[tuple[int, int, int], Runs] = field(default_factory=dict)

    def path(self, shared: int, start: int, end: int) -> Runs:
        """Return the steps of a cheapest path of ``count`` calls."""
        key = (shared, start, end)
        if key not in self._paths:
            if self.halves is None:
                self._paths[key] = ((1, start, end),)
            else:
                left, right = self.halves
                middle = int((left.table[shared, start] + right.table[shared, :, end]).argmin())
                steps = left.path(shared, start, middle) + right.path(shared, middle, end)
                self._paths[key] = _merge(steps)
        return self._paths[key]


def _merge(steps: Runs) -> Runs:
    merged: list[tuple[int, int, int]] = []
    for repeat, start, end in steps:
        if merged and start == end and merged[-1][1:] == (start, end):
            merged[-1] = (merged[-1][0] + repeat, start, end)
        else:
            merged.append((repeat, start, end))
    return tuple(merged)


def product(a: Power, b: Power) -> Power:
    """Return the chain ``a`` followed by ``b``."""
    return Power(count=a.count + b.count, table=min_plus(a.table, b.table), halves=(a, b))


def power(table: FloatArray, count: int) -> Power:
    """Return ``table`` (shared, in, out) to the power ``count`` by repeated squaring."""
    square = Power(count=1, table=table)
    result: Power | None = None
    while True:
        if count & 1:
            result = square if result is None else product(result, square)
        count >>= 1
        if not count:
            assert result is not None
            return result
        square = product(square, square)


def through(table: FloatArray, rest: FloatArray, count: int) -> FloatArray:
    """Return g[s, out, in]: the cheapest rest of everything when some call goes from in to out.

    ``rest[s, first in, last out]`` is the cost of all but this chain. With X its transpose and
    G(m) = min over j < m of P^(m-1-j) X P^j:  G(1) = X,  G(2m) = min(P^m G(m), G(m) P^m),
    G(m+1) = min(P G(m), X P^m).
    """
    x = np.ascontiguousarray(np.swapaxes(rest, 1, 2))
    g, powered = x, table
    for bit in bin(count)[3:]:
        g = np.minimum(min_plus(powered, g), min_plus(g, powered))
        powered = min_plus(powered, powered)
        if bit == "1":
            g = np.minimum(min_plus(table, g), min_plus(x, powered))
            powered = min_plus(powered, table)
    return g
