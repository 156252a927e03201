"""The bound of a problem whose segments share nothing but memory and have few choices: all of them are listed.

An instance with choice x takes t(x), by (1), and holds b(x), and w(x) in passing. With weights y over segments that add
up to one, what a plan holds is at least  Σ over instances of b + y w / (calls of its segment),  so the least time
within the memory is at least that of a linear program with one row:

    minimise  Σ calls · t   subject to   Σ calls · (b + y w / calls)  <=  memory_bytes,   each call a mixture of choices

which walks along the lower hulls of all segments' points (b + y w / calls, t), cheapest savings first. All of y on one
segment after the other is tried.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from autopar.passes.problem import FIELDS, FORBIDDEN, FloatArray, IntArray, Problem, Segment, Table
from autopar.passes.solve.columns import faster_with_more

MOST_CHOICES = 1 << 16
ROUNDED = 1e-9  # what rounding may have added, as a part

Point: TypeAlias = tuple[float, float]  # bytes, ns


def listed_bound_ns(problem: Problem, memory_bytes: int) -> float | None:
    """Least time of a plan within the memory, infinite where nothing fits or nothing is allowed.

    None where segments share variables, or have too many choices to list.
    """
    segments = [problem.root, *(chain.segment for chain in problem.chains)]
    calls = [1, *(chain.count for chain in problem.chains)]
    if any(chain.inputs or chain.shared for chain in problem.chains):
        return None
    if any(math.prod(segment.domains) > MOST_CHOICES for segment in segments):
        return None
    choices = [_choices(segment) for segment in segments]
    if any(not times.size for times, _, _ in choices):
        return math.inf
    bare = [_hull(held, times) for times, held, _ in choices]
    best = _least_ns(bare, calls, memory_bytes)
    for at, ((times, held, passing), count) in enumerate(zip(choices, calls, strict=True)):
        if passing.any() and best < math.inf:
            hulls = [*bare[:at], _hull(held + passing / count, times), *bare[at + 1 :]]
            best = max(best, _least_ns(hulls, calls, memory_bytes))
    return best * (1 - ROUNDED)


def _choices(segment: Segment) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time, bytes, and bytes in passing of all joint choices that are allowed."""
    axis = {variable: at for at, variable in enumerate(v for v, size in enumerate(segment.domains) if size > 1)}
    total = {name: np.zeros([segment.domains[v] for v in axis], dtype=np.int64) for name in FIELDS}
    for table in segment.tables:
        for name, sums in total.items():
            array = getattr(table, name)
            if array is not None:
                sums += _spread(table, array, axis)
    net = total["hide_ns"] - total["cover_ns"]
    earlier = net + total["earlier_ns"]
    exposed = np.maximum(np.maximum(net, 0), np.maximum(earlier, earlier + total["ahead_ns"]))
    allowed = total["sync_ns"] < FORBIDDEN
    numbers = total["sync_ns"] + exposed, total["bytes"], total["transient_bytes"]
    times, held, passing = (each[allowed].astype(np.float64) for each in numbers)
    return times, held, passing


def _spread(table: Table, array: IntArray, axis: Mapping[int, int]) -> IntArray:
    """A table's numbers with an axis for each variable of its segment that has a choice: numpy has 64 at most."""
    order = np.argsort(table.variables)
    shape = [1] * len(axis)
    for at in order:
        if table.variables[at] in axis:
            shape[axis[table.variables[at]]] = array.shape[at]
    return array.transpose(order).reshape(shape)


def _hull(held: FloatArray, times: FloatArray) -> list[Point]:
    """The lower hull of all points, from the leanest to the fastest; each is faster than the one before."""
    at = faster_with_more(held, times)
    found: list[Point] = []
    for point in zip(held[at].tolist(), times[at].tolist(), strict=True):
        while len(found) > 1 and _above(found[-2], found[-1], point):
            found.pop()
        found.append(point)
    return found


def _above(left: Point, middle: Point, right: Point) -> bool:
    """Whether the middle one is not below the line between the others."""
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])


def _least_ns(hulls: Sequence[Sequence[Point]], calls: Sequence[int], memory_bytes: int) -> float:
    """The linear program: from the fastest points on, as long as too much is held, the cheapest savings."""
    held = sum(count * hull[-1][0] for hull, count in zip(hulls, calls, strict=True))
    time = sum(count * hull[-1][1] for hull, count in zip(hulls, calls, strict=True))
    savings = heapq.merge(*(
        [((slower - fast) / (more - less), count * (more - less)) for (less, slower), (more, fast) in
         reversed([*itertools.pairwise(hull)])]
        for hull, count in zip(hulls, calls, strict=True)
    ))  # fmt: skip
    over = held - memory_bytes
    for price, saved in savings:
        if over <= 0:
            break
        time += price * min(saved, over)
        over = over - saved if saved < over else 0.0
    return time if over <= ROUNDED * held else math.inf
