"""Multipliers, and the concrete choices that eliminations under them stand for.

(1) is the largest of S, S + N, S + N + E and S + N + E + A. *mu* in [0, 3] goes along all four: S + mu N up to 1, then
S + N + (mu - 1) E, then S + N + E + (mu - 2) A; for each mu that is no more than (1), and at one of the ends it is (1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autopar.passes.problem import FloatArray, IntArray
from autopar.passes.solve.eliminate import BranchedRun, Prices, Run
from autopar.passes.solve.model import HELD, TIME, WORK, Model, amounts

AnyRun = Run | BranchedRun

ENDS = (0.0, 1.0, 2.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """``weights`` are of the root and of each chain as a whole. ``time`` is 1, or 0 for memory alone."""

    time: float = 1.0
    memory: float = 0.0
    weights: tuple[float, ...]

    def prices(self, segment: int, count: int, mu: float) -> Prices:
        """Prices of one instance of segment 0 (the root) or 1 + chain number."""
        transient = self.memory * self.weights[segment] / count
        return Prices.along(mu, time=self.time, held=self.memory, transient=transient)


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A concrete assignment: root values and per chain runs (repeat, values), with its true numbers."""

    root: IntArray
    calls: tuple[tuple[tuple[int, IntArray], ...], ...]
    time: int
    held: int
    works: tuple[int, ...]
    mean_works: tuple[float, ...]

    @property
    def memory(self) -> int:
        """Bytes with the largest transient."""
        return self.held + max(self.works)


def lagrangian_cost(m: Multipliers, segment: int, count: int, real: IntArray) -> FloatArray:
    """The exact scalarised cost of instances with the given ``amounts``."""
    prices = m.prices(segment, count, 0.0)
    cost: FloatArray = m.time * real[TIME] + prices.held * real[HELD] + prices.transient * real[WORK]
    return cost


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockChoice:
    """Per boundary (E of them) the best column found: values (variables, E), amounts (3, E), cost, bound.

    ``tight`` (E) is the grid value that gives ``bound``; ``numbers`` (NUMBERS, K, E) are the sums of the
    assignments of each of the K grid values, with the pivot that gives ``bound``.
    """

    shared: IntArray
    start: IntArray
    end: IntArray
    values: IntArray
    real: IntArray
    cost: FloatArray
    bound: FloatArray
    tight: IntArray
    numbers: IntArray


def choose(
    model: Model,
    m: Multipliers,
    number: int,
    runs: tuple[AnyRun, ...],
    table: FloatArray,
    *,
    better: Mapping[tuple[int, int, int], IntArray],
    shared: IntArray,
    start: IntArray,
    end: IntArray,
) -> BlockChoice:
    """Return for each boundary the assignment of least true scalarised cost among those of ``runs``.

    ``table`` (shared, in, out, pivot) are lower bounds on it, no lower than those of the runs. ``better``
    are more assignments, by (shared, in, out).
    """
    chain, plan = model.chains[number], model.chains[number].eliminator.plan
    size, pivots, each = start.size, chain.pivots, np.arange(start.size)
    pivot = np.tile(np.arange(pivots), size)
    wide = [np.repeat(states, pivots) for states in (shared, start, end)]
    kept = chain.unflatten(wide[0], wide[1], wide[2], pivot)
    values = np.stack([run.assign(kept) for run in runs])
    numbers = np.stack([plan.measure(v) for v in values], axis=1)
    real = amounts(numbers)
    bounds = table[shared, start, end]
    cost = lagrangian_cost(m, 1 + number, chain.chain.count, real).reshape(-1, size, pivots)
    cost[:, ~np.isfinite(bounds)] = np.inf
    by_entry = np.swapaxes(cost, 0, 1).reshape(size, -1)
    run, found = np.divmod(by_entry.argmin(axis=1), pivots)
    at = each * pivots + found
    lowest = bounds.argmin(axis=1)
    of_runs = np.stack([chain.boundary(r.table)[shared, start, end, lowest] for r in runs])
    chosen, reals, costs = values[run, :, at].T, real[:, run, at], by_entry.min(axis=1)
    for e, key in enumerate(zip(shared, start, end, strict=True)):
        if (more := better.get((int(key[0]), int(key[1]), int(key[2])))) is not None:
            its = amounts(plan.measure(more[:, None]))
            its_cost = float(lagrangian_cost(m, 1 + number, chain.chain.count, its)[0])
            if its_cost < costs[e]:
                chosen[:, e], reals[:, e], costs[e] = more, its[:, 0], its_cost
    return BlockChoice(
        shared=shared,
        start=start,
        end=end,
        values=chosen,
        real=reals,
        cost=costs,
        bound=bounds[each, lowest],
        tight=of_runs.argmax(axis=0),
        numbers=numbers[:, :, each * pivots + lowest],
    )


def better_mu(grid: list[float], at: int, ends: FloatArray) -> list[float]:
    """Where the line that is lowest at ``grid[at]`` meets that of the neighbour on its rising side.

    ``ends`` (``ENDS``, K): cost of the assignment of each grid value at each end.
    """
    here = grid[at]
    top = float(np.argmax(ends[:, at]))
    if top not in grid:
        return [top]
    side = [i for i, mu in enumerate(grid) if (mu - here) * (top - here) > 0]
    if not side:
        return []
    other = min(side, key=lambda i: abs(grid[i] - here))
    low, high = sorted((here, grid[other]))
    between = [mu for mu in ENDS if low < mu < high]
    if between:
        return between
    end = int(low)
    slopes = ends[end + 1, [at, other]] - ends[end, [at, other]]
    turn = float(slopes[0] - slopes[1])
    if turn == 0.0:
        return []
    mu = end + float(ends[end, other] - ends[end, at]) / turn
    return [mu] if low < mu < high else []
