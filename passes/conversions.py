"""What it costs to have a value in the layouts that its consumers need.

A conversion is made once for each (value, layout) and shared. A value with several consumers has a *hub*: the
set of layouts in which it is materialised, at most ``HUB_LIMIT``; its cost is that of the cheapest tree
of conversions that starts at the producer's layout.
"""

from __future__ import annotations

import functools
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
from autopar.passes.recompute import Keeping

HUB_LIMIT = 3


@dataclass(eq=False)
class Conversions:
    """Prices of layout changes, each computed once."""

    pricing: Pricing
    known: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    keeping: Keeping = field(default_factory=Keeping)

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
        return min(FORBIDDEN, sum(p[0] for p in prices)), sum(p[1] for p in prices)

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


def trees_ns(
    start: tuple[IntArray, IntArray], between: tuple[IntArray, IntArray], groups: Sequence[Sequence[int]]
) -> tuple[IntArray, IntArray]:
    """Cheapest tree over each group of targets from each of p layouts.

    ``start``: forward and backward [p, target]; ``between``: [target, target], not read where every group
    is one target. Returns forward and backward [p, group]. All groups of one size are priced at once.
    """
    both, links = np.array(start), np.array(between)
    found = np.zeros((2, len(start[0]), len(groups)), np.int64)
    for size in sorted({len(group) for group in groups}):
        columns = [c for c, group in enumerate(groups) if len(group) == size]
        at = np.array([groups[c] for c in columns])
        if size == 1:
            found[:, :, columns] = both[:, :, at[:, 0]]
            continue
        near, far = both[:, :, at], links[:, None, at[:, :, None], at[:, None, :]]
        orders = [_in_order(near, far, order) for order in itertools.permutations(range(size))]
        found[:, :, columns] = functools.reduce(_cheaper, orders)
    return np.minimum(found[0], FORBIDDEN), found[1]


def _in_order(near: IntArray, far: IntArray, order: tuple[int, ...]) -> IntArray:
    """The targets made one after the other, each from the start or from one made before: [2, p, group].

    ``near``: forward and backward [2, p, group, k]; ``far``: [2, 1, group, k, k].
    """
    made = [
        functools.reduce(_cheaper, (near[..., target], *(far[..., o, target] for o in order[:index])))
        for index, target in enumerate(order)
    ]
    return np.asarray(np.sum(made, axis=0))


def _cheaper(one: IntArray, other: IntArray) -> IntArray:
    """By the sum of forward and backward, the first of equals."""
    return np.where(other.sum(axis=0) < one.sum(axis=0), other, one)
