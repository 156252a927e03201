"""A lower bound for a model cut into stages that run at once, each within a memory of its own.

Place s takes the instances A_s within ``memory_s``; with ``sent_s``, its communication with others, it is busy for T
at most. With prices λ_s >= 0 and weights y_s >= 0

    y_s · Σ over A_s of (time + λ_s · bytes_s)  <=  y_s · (T - sent_s + λ_s · memory_s)               for each place
    T  >=  (Σ over instances of  min over s of y_s (time + λ_s · bytes_s)  +  Σ y_s (sent_s - λ_s memory_s)) / Σ y_s

where bytes_s differ by what a place holds of each microbatch in flight. An instance is a call of a block as a whole;
the root may stand anywhere, so there each entry of a table takes its own minimum. Weights are such that a block
costs the same everywhere, which makes the bound tight where blocks are all there is. Places that hold less have no
higher price; all such prices of a short list are tried.

Calls are not divided: of those that cost c_s(λ) or more at place s, besides what stands there, it takes at most

    K_s(T)  =  min over λ of  floor((T - sent_s - own_s(λ) + λ · memory_s) / c_s(λ))

so T is also at least the least at which all places together take as many calls as there are.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.passes.problem import FORBIDDEN, FloatArray, Table
from autopar.passes.solve.chain import power
from autopar.passes.solve.choice import ENDS
from autopar.passes.solve.eliminate import Prices
from autopar.passes.solve.model import Model
from autopar.passes.solve.plan import BYTES, SYNC

SHARES = (1.0, 0.2, 0.0)  # of the price that is given, which are tried
PRECISE = 1e-6
SAFE = 1 - 1e-9  # what rounding may have added


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """So many places alike. ``memory_bytes``, ``sent_ns``: of each. ``own``: tables of the root that stand there."""

    model: Model
    count: int
    memory_bytes: int
    sent_ns: int
    own: tuple[Table, ...] = ()


def staged_bound_ns(places: Sequence[Places], price: float, enough_ns: int | None = None) -> int:
    """Least time T of the slowest place; 0 where nothing can be said cheaply.

    ``price``: what a byte may be worth, in ns. ``enough_ns``: by how much more T may be is not asked. Requires: models
    of one problem but for their bytes, those that hold most first.
    """
    first = places[0].model
    if not first.chains or first.root.children:
        return 0
    prices = list(dict.fromkeys(share * price for share in SHARES))
    chains = range(len(first.chains))

    @functools.cache
    def table(number: int, s: int, p: int) -> FloatArray:
        return _block(places[s], number, prices[p])

    @functools.cache
    def root(s: int, p: int) -> FloatArray:
        return _root(places[s], prices[p])

    best = 0.0
    for chosen in itertools.combinations_with_replacement(range(len(prices)), len(places)):
        own = [[table(number, s, p) for s, p in enumerate(chosen)] for number in chains]
        costs = [root(s, p) for s, p in enumerate(chosen)]
        best = max(best, _bound(places, own, costs, [prices[p] for p in chosen]))
        if enough_ns is not None and best * SAFE >= enough_ns:
            return int(best * SAFE)
    least = [
        [min(float(table(number, s, p).min()) for number in chains) for p in range(len(prices))]
        for s in range(len(places))
    ]
    return int(max(best, _undivided(places, least, prices)) * SAFE)


def _undivided(places: Sequence[Places], least: Sequence[Sequence[float]], prices: Sequence[float]) -> float:
    """Least T at which the places take all calls. ``least``: of a call by place and price."""
    calls = sum(places[0].model.counts[1:])
    lines = [
        [
            (cost, at.sent_ns + _own_ns(at, price) - price * at.memory_bytes)
            for cost, price in zip(row, prices, strict=True)
        ]
        for at, row in zip(places, least, strict=True)
    ]
    if any(not 0 < cost < FORBIDDEN for row in lines for cost, _ in row):
        return 0.0

    def taken(most: float) -> int:
        return sum(
            at.count * max(0, min(int((most - base) // cost) for cost, base in row))
            for at, row in zip(places, lines, strict=True)
        )

    low, high = 0.0, max(calls * cost + max(0.0, base) for row in lines for cost, base in row)
    while high - low > PRECISE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if taken(middle) >= calls else (middle, high)
    return low


def _own_ns(at: Places, price: float) -> float:
    """What stands at a place anyway, each table by itself."""
    total = 0.0
    for table in at.own:
        cost = table.sync_ns if table.bytes is None else table.sync_ns + price * table.bytes
        total += float(np.min(cost, where=table.sync_ns < FORBIDDEN, initial=FORBIDDEN))
    return total if total < FORBIDDEN else 0.0


def _bound(
    places: Sequence[Places], tables: Sequence[Sequence[FloatArray]], roots: Sequence[FloatArray],
    prices: Sequence[float],
) -> float:  # fmt: skip
    """``tables`` by chain and place."""
    first = places[0].model
    longest = max(range(len(tables)), key=lambda number: first.counts[1 + number])
    least = [float(table.min()) for table in tables[longest]]
    if not all(np.isfinite(least)) or min(least) <= 0:
        return 0.0
    weights = [least[0] / one for one in least]
    extras = []
    for chain, row in zip(first.chains, tables, strict=True):
        table = np.min([weight * one for weight, one in zip(weights, row, strict=True)], axis=0)
        extras.append(chain.in_root(power(table, chain.chain.count).table))
    cost = np.min([weight * one for weight, one in zip(weights, roots, strict=True)], axis=0)
    total = float(first.root.run_costs(cost, extras).table.min())
    for weight, at, price in zip(weights, places, prices, strict=True):
        total += weight * at.count * (at.sent_ns - price * at.memory_bytes)
    bound = total / sum(weight * at.count for weight, at in zip(weights, places, strict=True))
    return bound if np.isfinite(bound) else 0.0


def _block(at: Places, number: int, price: float) -> FloatArray:
    """(shared, in, out): cost of one call at these places."""
    chain = at.model.chains[number]
    ends = ENDS[: chain.eliminator.plan.reach + 1]
    runs = [chain.eliminator.run(Prices.along(mu, time=1.0, held=price, transient=0.0)) for mu in ends]
    return np.asarray(chain.boundary(np.max([run.table for run in runs], axis=0)).min(axis=3))


def _root(at: Places, price: float) -> FloatArray:
    """Cost of every entry of the root's tables, none of its traffic exposed."""
    numbers = at.model.root.plan.numbers
    return np.asarray(numbers[SYNC] + price * numbers[BYTES], dtype=np.float64)
