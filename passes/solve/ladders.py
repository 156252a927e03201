"""Least times of a place with one call of a block, two and so on, and how long places need that share all calls.

Calls are not divided. Each is in one mode (m) of its block: those in modes M run at place s, besides what stands there,
only within

    T_s(M)  =  max over λ of  sent_s + own_s(λ) - λ · (memory_s - t(M)) + Σ over m in M of c_s(m, λ)

where t(M) is the least that the one of them holds in passing that holds most. And each begins in the state that the one
before it left: calls in states a, b, ... z run only within the least of  sent_s(a) + c_s(a, b, λ) + ... + sent_s(z).
A price (λ) counts here at which no time is worth memory that there is not.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from autopar.passes.problem import FORBIDDEN, FloatArray

MOST_SUMS = 32  # of modes that places may have their calls in, told apart


def least_ns(
    counts: Sequence[int], ladders: Sequence[Iterator[float]], calls: int, *, each: bool, enough_ns: float = np.inf
) -> float:  # fmt: skip
    """Least T at which so many places of each kind take so many calls, and ``each`` at least one. ``ladders``: by kind
    the time of one call, of two and so on. ``enough_ns``: by how much more T may be is not asked."""
    waiting = [(next(ladder), s) for s, ladder in enumerate(ladders)]
    most = max(waiting)[0] if each else 0.0
    heapq.heapify(waiting)
    while True:
        time_ns, s = waiting[0]
        calls -= counts[s]
        if not 0 < time_ns < np.inf or most == np.inf:
            return 0.0  # nothing is known
        if calls <= 0 or time_ns >= enough_ns:
            return max(time_ns, most)
        heapq.heapreplace(waiting, (next(ladders[s]), s))


def by_modes(modes: FloatArray, passing: FloatArray, prices: FloatArray, base: FloatArray) -> Iterator[float]:
    """Least T of a place with one call, with two and so on; 0 where that is not known.

    ``modes``: what a call costs, [price, mode]; ``base``: what all else does, [price]. ``passing`` [mode]: bytes that a
    call holds in passing.
    """
    allowed = modes.max(axis=0) < FORBIDDEN
    if not allowed.any() or modes[:, allowed].min() <= 0:
        return itertools.repeat(0.0)
    # where the most that is held in passing is so much, or less
    return map(min, zip(*(
        _times_ns(base + prices * most, _undominated(modes[:, allowed & (passing <= most)]))
        for most in sorted(set(passing[allowed].tolist()))
    ), strict=True))  # fmt: skip


def by_states(
    steps: Sequence[FloatArray], bases: Sequence[float], begins: FloatArray, ends: FloatArray
) -> Iterator[float]:
    """Least T of a place with one call, with two and so on. By price: ``steps``, what a call costs [from, to];
    ``bases``, what all else does. ``begins``, ``ends`` [state]: what is handed over there takes, beyond the least."""
    ways = [begins for _ in steps]
    while True:
        ways = [(way[:, None] + step).min(axis=0) for way, step in zip(ways, steps, strict=True)]
        yield max(base + float((way + ends).min()) for base, way in zip(bases, ways, strict=True))


def _times_ns(base: FloatArray, modes: FloatArray) -> Iterator[float]:
    """Least T of a place with one call, with two and so on. ``base`` [price], ``modes`` [price, mode]."""
    sums = base[:, None]
    while True:
        sums = _undominated((sums[:, :, None] + modes[:, None, :]).reshape(len(base), -1))
        yield float(sums.max(axis=0).min())


def _undominated(columns: FloatArray) -> FloatArray:
    """The columns that no other is below in every row; where these are many, what neighbours have at least."""
    columns = columns[:, np.lexsort(columns[::-1])]
    if len(columns) == 2:  # as most are; those before are no higher in the first row
        below = np.minimum.accumulate(columns[1])
        left = columns[:, np.concatenate([[True], columns[1, 1:] < below[:-1]])]
    else:
        lower = (columns[:, :, None] <= columns[:, None, :]).all(axis=0)
        left = columns[:, ~np.triu(lower, 1).any(axis=0)]
    step = -(-left.shape[1] // MOST_SUMS)
    return np.asarray(np.minimum.reduceat(left, np.arange(0, left.shape[1], step), axis=1))
