"""List every choice of one instance that an optimal solution may hold, or the most promising ones.

Variables are fixed in depth-first order of the buckets, last eliminated first. A partial choice x has an
exact lower bound on what any solution holding it costs: the rest of the problem (10) plus, for each mu of
the grid, the cost of x with the best completion, which the joined buckets hold (11). It is dropped when

    that bound >= the time of the incumbent                                             (12)
    another partial choice with the same values of all variables that still matter is no worse in
    sync, sync + hide - cover, that + earlier, that + ahead, bytes and transient        (13)
    there are more than ``limit`` of them: those with the lowest bounds stay, and the lowest bound among
    the others, ``cut``, is remembered: no solution below it is lost                    (14)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.passes.problem import FloatArray, IntArray
from autopar.passes.solve.eliminate import Prices, Run
from autopar.passes.solve.model import amounts
from autopar.passes.solve.plan import AHEAD, BYTES, EARLIER, NET, NUMBERS, SYNC, TRANSIENT, Plan

LOOK_BACK = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Choices: values (variables, E), amounts (3, E), lower bounds (E) and the index of their start row."""

    values: IntArray
    real: IntArray
    bound: FloatArray
    row: IntArray
    cut: float

    def lowest(self, most: int) -> Columns:
        """The ``most`` choices of lowest bounds."""
        if self.bound.size <= most:
            return self
        ranked = np.argsort(self.bound, kind="stable")
        keep = np.sort(ranked[:most])
        return Columns(
            values=self.values[:, keep],
            real=self.real[:, keep],
            bound=self.bound[keep],
            row=self.row[keep],
            cut=min(self.cut, float(self.bound[ranked[most]])),
        )


def enumerate_columns(
    runs: Sequence[Run],
    *,
    kept: IntArray,
    others: FloatArray,
    start: Sequence[FloatArray],
    target: float,
    limit: int,
    interface: Sequence[int],
    prices: Prices | None = None,
) -> Columns:
    """List choices whose bound is below ``target``.

    ``runs`` are eliminations of one segment under the same prices but mu. ``kept`` (kept variables, E) are
    the boundaries to begin with, ``start[k]`` (E) their table entries in run k and ``others`` (E) the cost of
    everything else (10). Variables in ``interface`` always matter. Where only the cost at ``prices`` counts,
    (13) compares that, at each of the maxima of (1).
    """
    plan = runs[0].plan
    values = np.zeros((len(plan.domains), kept.shape[1]), dtype=np.int64)
    values[list(plan.kept)] = kept
    row = np.arange(kept.shape[1], dtype=np.int64)
    bounds = np.stack(start) + others
    sums = _begin(plan, values)
    order = depth_first(plan)
    matters = _frontiers(plan, order, interface)
    cut = np.inf
    keep, cut = _select(bounds, target, limit, cut)
    values, row, bounds, sums = values[:, keep], row[keep], bounds[:, keep], sums[:, keep]
    begun, trail = values, []
    for step, frontier in zip(order, matters, strict=True):
        bucket = plan.buckets[step]
        v = bucket.scope[0]
        grown = []
        for k, run in enumerate(runs):
            column = run.column(bucket, values)
            grown.append(column - column.min(axis=0) + bounds[k])
        wide = np.stack(grown).reshape(len(runs), -1)
        keep, cut = _select(wide, target, 4 * limit, cut)
        value, parent = np.divmod(keep, max(row.size, 1))
        values = _taken(values, (*bucket.scope[1:], *frontier), parent)
        row, bounds, sums = row[parent], wide[:, keep], sums[:, parent]
        values[v] = value
        for table in bucket.tables:
            sums = sums + plan.numbers[:, plan.entry(table, values)]
        keep = undominated(_key(row, values, frontier, plan.domains), _compare(sums, prices, plan.reach))
        best, cut = _select(bounds[:, keep], target, limit, cut)
        keep = keep[best]
        values, row, bounds, sums = _taken(values, frontier, keep), row[keep], bounds[:, keep], sums[:, keep]
        trail.append((v, value[keep], parent[keep]))
    keep = undominated(_key(row, values, tuple(interface), plan.domains), amounts(sums), look_back=row.size)
    bound = bounds[:, keep].max(axis=0)
    return Columns(
        values=_traced(begun, trail, keep), real=amounts(sums)[:, keep], bound=bound, row=row[keep], cut=cut
    )


def _taken(values: IntArray, variables: Collection[int], at: IntArray) -> IntArray:
    """The partial choices ``at``, with the values of some variables only: of hundreds few still matter."""
    taken = np.empty((len(values), at.size), dtype=np.int64)
    for v in variables:
        taken[v] = values[v, at]
    return taken


def _traced(begun: IntArray, trail: Sequence[tuple[int, IntArray, IntArray]], at: IntArray) -> IntArray:
    """All values of the last choices ``at``: ``trail`` tells of each step the variable, its values and the parents."""
    found: list[tuple[int, IntArray]] = []
    for v, value, parent in reversed(trail):
        found.append((v, value[at]))
        at = parent[at]
    values = begun[:, at]
    for v, value in found:
        values[v] = value
    return values


def depth_first(plan: Plan) -> tuple[int, ...]:
    """Return bucket indices, each after the bucket its message goes to, small subtrees first."""
    home = {b.scope[0]: i for i, b in enumerate(plan.buckets)}
    children: list[list[int]] = [[] for _ in plan.buckets]
    sizes = [1] * len(plan.buckets)
    roots: list[int] = []
    for i, bucket in enumerate(plan.buckets):
        parent = home.get(bucket.scope[1]) if len(bucket.scope) > 1 else None
        if parent is None:
            roots.append(i)
        else:
            children[parent].append(i)
            sizes[parent] += sizes[i]
    order: list[int] = []
    stack = sorted(roots, key=lambda i: (sizes[i], i), reverse=True)
    while stack:
        i = stack.pop()
        order.append(i)
        stack += sorted(children[i], key=lambda j: (sizes[j], j), reverse=True)
    return tuple(order)


def _frontiers(plan: Plan, order: Sequence[int], interface: Sequence[int]) -> list[tuple[int, ...]]:
    """For each step the variables whose values still matter after it."""
    found: list[tuple[int, ...]] = []
    needed = set(interface)
    for step in reversed(order):
        found.append(tuple(sorted(needed)))
        needed.update(plan.buckets[step].scope)
    found.reverse()
    done = set(plan.kept)
    for i, step in enumerate(order):
        done.add(plan.buckets[step].scope[0])
        found[i] = tuple(v for v in found[i] if v in done)
    return found


def _begin(plan: Plan, values: IntArray) -> IntArray:
    """Sums of the tables over kept variables only."""
    inside = {t for bucket in plan.buckets for t in bucket.tables}
    sums = np.zeros((len(NUMBERS), values.shape[1]), dtype=np.int64)
    for table in range(len(plan.scopes)):
        if table not in inside:
            sums += plan.numbers[:, plan.entry(table, values)]
    return sums


def _select(bounds: FloatArray, target: float, limit: int, cut: float) -> tuple[IntArray, float]:
    """Indices that (12) and (14) keep, and the new cut."""
    bound = bounds.max(axis=0)
    good = np.flatnonzero((bound < target) & np.isfinite(bound))
    if good.size > limit:
        ranked = good[np.argsort(bound[good], kind="stable")]
        cut = min(cut, float(bound[ranked[limit]]))
        good = np.sort(ranked[:limit])
    return good, cut


def _key(row: IntArray, values: IntArray, frontier: Sequence[int], domains: Sequence[int]) -> IntArray:
    key, size = row.copy(), int(row.max(initial=0)) + 1
    for v in frontier:
        if size * domains[v] > 1 << 60:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            size = int(key.max(initial=0)) + 1
        key, size = key * domains[v] + values[v], size * domains[v]
    return key


def _compare(sums: IntArray, prices: Prices | None, reach: int) -> IntArray | FloatArray:
    exposed = [0 * sums[NET], *np.cumsum(sums[[NET, EARLIER, AHEAD][:reach]], axis=0)]
    if prices is not None:
        flat = prices.time * sums[SYNC] + prices.held * sums[BYTES] + prices.transient * sums[TRANSIENT]
        return np.stack([flat + prices.time * more for more in exposed])
    return np.stack([*(sums[SYNC] + more for more in exposed), sums[BYTES], sums[TRANSIENT]])


def undominated(key: IntArray, costs: IntArray | FloatArray, *, look_back: int = LOOK_BACK) -> IntArray:
    """Sorted indices without those that a near one with the same key beats in all ``costs`` (rows).

    Only ``look_back`` predecessors in sorted order are compared, so some that are beaten may stay.
    """
    order = np.lexsort((*reversed(costs), key))
    for _ in range(2):
        k, rows = key[order], [cost[order] for cost in costs[1:]]  # of the first one those before are no more
        beaten = np.zeros(order.size, dtype=np.bool_)
        for back in range(1, min(look_back, order.size - 1) + 1):
            same = k[back:] == k[:-back]
            if not same.any():
                break
            left = np.flatnonzero(same & ~beaten[back:])
            for cost in rows:
                left = left[cost[left] <= cost[left + back]]
            beaten[left + back] = True
        if not beaten.any():
            break
        order = order[~beaten]
    return np.sort(order)


def faster_with_more(sizes: IntArray | FloatArray, times: IntArray | FloatArray) -> IntArray:
    """Indices of what holds least, then of what holds more and is faster than all before."""
    order = np.lexsort((times, sizes))
    ordered = times[order]
    return order[np.r_[True, ordered[1:] < np.minimum.accumulate(ordered)[:-1]]]
