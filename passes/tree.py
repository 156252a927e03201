"""The cheapest way to materialise one value in several layouts: which layout is made from which."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autopar.ir.layout import Layout
from autopar.passes.conversions import Conversions
from autopar.passes.facts import Fact


def conversion_tree(
    conversions: Conversions, fact: Fact, have: Layout, needs: Sequence[Layout], *, crosses_time: bool = False
) -> tuple[tuple[Layout, Layout], ...]:
    """Pairs (from, to) in an order in which each ``from`` exists; ``have`` itself is not listed.

    The cost is that of the solver's hub: the least over all orders, each layout made from the cheapest
    one before it.
    """
    targets = [layout for layout in dict.fromkeys(needs) if layout != have]
    best: tuple[int, tuple[tuple[Layout, Layout], ...]] | None = None
    orders = itertools.permutations(targets) if len(targets) <= 4 else [tuple(targets)]
    for order in orders:
        total, pairs = 0, []
        for index, target in enumerate(order):
            prices = [
                (
                    sum(
                        conversions.cost_ns(fact, start, target, crosses_time=crosses_time and start == have)[:2]
                    ),
                    k,
                )
                for k, start in enumerate((have, *order[:index]))
            ]
            price, k = min(prices)
            total += price
            pairs.append(((have, *order)[k], target))
        if best is None or total < best[0]:
            best = total, tuple(pairs)
    return best[1] if best else ()
