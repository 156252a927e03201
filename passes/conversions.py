"""What it costs to have a value in the layouts that its consumers need.

A conversion is made once for each (value, layout) and shared. A value with several consumers has a *hub*: the
set of layouts in which it is materialised, at most ``HUB_LIMIT``; its cost is that of the cheapest tree
of conversions that starts at the producer's layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autopar.ir.convert import convert
from autopar.ir.errors import IRError
from autopar.ir.layout import Layout
from autopar.ir.program import MICROBATCH_AXIS
from autopar.passes.facts import Fact
from autopar.passes.pricing import Pricing
from autopar.passes.problem import FORBIDDEN, IntArray

HUB_LIMIT = 3


@dataclass(eq=False)
class Conversions:
    """Prices of layout changes, each computed once."""

    pricing: Pricing
    known: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)

    def cost_ns(
        self, fact: Fact, have: Layout, need: Layout, *, crosses_time: bool = False
    ) -> tuple[int, int]:
        """Forward and backward nanoseconds; FORBIDDEN where no conversion leads there.

        ``crosses_time``: the value may change on the microbatch axis: the loss, which is summed, and what
        depends on no parameter, which is computed for the whole batch before the first microbatch.
        """
        if have == need:
            return 0, 0
        key = (fact.type, fact.grad, crosses_time, have, need)
        if key not in self.known:
            self.known[key] = self._price(fact, have, need, crosses_time=crosses_time)
        return self.known[key]

    def _price(self, fact: Fact, have: Layout, need: Layout, *, crosses_time: bool) -> tuple[int, int]:
        timed = MICROBATCH_AXIS in have.mesh.names
        if timed and not crosses_time and have[MICROBATCH_AXIS] != need[MICROBATCH_AXIS]:
            return FORBIDDEN, 0
        try:
            steps = convert(have, need, fact.type.shape, grad=fact.grad)
        except IRError:
            return FORBIDDEN, 0
        prices = [self.pricing.step_ns(step, fact.type) for step in steps]
        return sum(p[0] for p in prices), sum(p[1] for p in prices)

    def matrix(
        self, fact: Fact, have: Sequence[Layout], need: Sequence[Layout], *, crosses_time: bool = False
    ) -> tuple[IntArray, IntArray]:
        """Forward and backward prices, [have, need]."""
        prices = [[self.cost_ns(fact, h, n, crosses_time=crosses_time) for n in need] for h in have]
        array = np.array(prices, dtype=np.int64).reshape(len(have), len(need), 2)
        return array[:, :, 0], array[:, :, 1]


def hub_sets(demands: Sequence[Sequence[Layout]]) -> tuple[tuple[Layout, ...], ...]:
    """Sets of layouts that could serve consumers whose strategies demand ``demands[consumer]``.

    Each set holds a layout for every consumer, and no more layouts than there are consumers.
    """
    distinct = list(dict.fromkeys(layout for demand in demands for layout in demand))
    wanted = [frozenset(demand) for demand in dict.fromkeys(tuple(demand) for demand in demands)]
    limit = min(HUB_LIMIT, len(wanted) if len(set(wanted)) > 1 else len(demands), len(distinct))
    return tuple(
        chosen
        for size in range(1, limit + 1)
        for chosen in itertools.combinations(distinct, size)
        if all(not demand.isdisjoint(chosen) for demand in wanted)
    )


def tree_ns(
    start: tuple[IntArray, IntArray], between: tuple[IntArray, IntArray]
) -> tuple[IntArray, IntArray]:
    """Cheapest tree over k targets from each of p layouts.

    ``start``: forward and backward [p, k]; ``between``: [k, k]. Returns forward and backward [p].
    """
    k = start[0].shape[1]
    best: tuple[IntArray, IntArray] | None = None
    for order in itertools.permutations(range(k)):
        forward = np.zeros(start[0].shape[0], dtype=np.int64)
        backward = forward.copy()
        for index, target in enumerate(order):
            options_f = np.stack(
                [start[0][:, target], *(np.full_like(forward, between[0][o, target]) for o in order[:index])]
            )
            options_b = np.stack(
                [start[1][:, target], *(np.full_like(forward, between[1][o, target]) for o in order[:index])]
            )
            pick = np.argmin(options_f + options_b, axis=0)
            forward = forward + np.take_along_axis(options_f, pick[None], 0)[0]
            backward = backward + np.take_along_axis(options_b, pick[None], 0)[0]
        if best is None:
            best = forward, backward
        else:
            better = forward + backward < best[0] + best[1]
            best = np.where(better, forward, best[0]), np.where(better, backward, best[1])
    assert best is not None
    return best
