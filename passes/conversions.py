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
from typing import TypeAlias

import numpy as np

from autopar.ir.convert import Change, changes
from autopar.ir.errors import IRError
from autopar.ir.layout import Layout
from autopar.passes.early import leaves_time
from autopar.passes.facts import Fact
from autopar.passes.pricing import Pricing
from autopar.passes.problem import FORBIDDEN, IntArray
from autopar.passes.recompute import Keeping

HUB_LIMIT = 3


_Prices: TypeAlias = dict[tuple[Layout, Layout], tuple[int, ...]]


@dataclass(eq=False)
class Conversions:
    """Prices of layout changes, each computed once."""

    pricing: Pricing
    known: dict[tuple[object, ...], _Prices] = field(default_factory=dict)
    walked: dict[tuple[object, ...], tuple[Change, ...] | None] = field(default_factory=dict)

    @functools.cached_property
    def keeping(self) -> Keeping:
        return Keeping(self._within)

    def changes(self, fact: Fact, have: Layout, need: Layout) -> tuple[Change, ...] | None:
        """What leads from one layout to the other; None where nothing does."""
        key = fact.type.shape, fact.grad, have, need
        found = self.walked.get(key, ())
        if found == ():  # which nothing but a layout itself leads to
            try:
                found = changes(have, need, fact.type.shape, grad=fact.grad)
            except IRError:
                found = None
            self.walked[key] = found
        return found

    def _within(self, fact: Fact, have: Layout, need: Layout) -> tuple[Change, ...] | None:
        """Those within a microbatch."""
        return None if leaves_time(have, need) else self.changes(fact, have, need)

    @property
    def numbers(self) -> int:
        """How many a price has."""
        return 4 if self.pricing.aside else 2

    def cost_ns(
        self, fact: Fact, have: Layout, need: Layout, *, crosses_time: bool = False
    ) -> tuple[int, ...]:
        """The sums of ``Pricing.change_ns``; FORBIDDEN where no conversion leads there.

        ``crosses_time``: the value may change on the microbatch axis: the loss, which is summed, and what
        depends on no parameter, which is computed for the whole batch before the first microbatch.
        """
        return self._looked_up(self._prices(fact, crosses_time), fact, have, need, crosses_time=crosses_time)

    def _prices(self, fact: Fact, crosses_time: bool) -> _Prices:
        """Those known of values like this one."""
        return self.known.setdefault((fact.type, fact.grad, fact.parameter, crosses_time), {})

    def _looked_up(
        self, known: _Prices, fact: Fact, have: Layout, need: Layout, *, crosses_time: bool
    ) -> tuple[int, ...]:
        if have is need or have == need:
            return (0,) * self.numbers
        found = known.get((have, need))
        if found is None:
            found = known[have, need] = self._price(fact, have, need, crosses_time=crosses_time)
        return found

    def _price(self, fact: Fact, have: Layout, need: Layout, *, crosses_time: bool) -> tuple[int, ...]:
        never = (FORBIDDEN, *(0 for _ in range(1, self.numbers)))
        if not crosses_time and leaves_time(have, need):
            return never
        if (found := self.changes(fact, have, need)) is None:
            return never
        each = [self.pricing.change_ns(change, fact) for change in found]
        ahead, *others = each[0] if len(each) == 1 else map(sum, zip(*each, strict=True))
        return min(FORBIDDEN, ahead), *others

    def matrix(
        self, fact: Fact, have: Sequence[Layout], need: Sequence[Layout], *, crosses_time: bool = False
    ) -> IntArray:
        """Prices, [number, have, need]."""
        known = self._prices(fact, crosses_time)
        prices = [[self._looked_up(known, fact, h, n, crosses_time=crosses_time) for n in need] for h in have]
        return np.array(prices, dtype=np.int64).reshape(len(have), len(need), self.numbers).transpose(2, 0, 1)


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


def trees_ns(start: IntArray, between: IntArray, groups: Sequence[Sequence[int]]) -> IntArray:
    """Prices of the cheapest tree over each group of targets from each of p layouts, [number, p, group].

    ``start``: [number, p, target]; ``between``: [number, target, target], not read where every group is one target.
    All groups of one size are priced at once.
    """
    found = np.zeros((*start.shape[:2], len(groups)), np.int64)
    for size in sorted({len(group) for group in groups}):
        columns = [c for c, group in enumerate(groups) if len(group) == size]
        at = np.array([groups[c] for c in columns])
        if size == 1:
            found[:, :, columns] = start[:, :, at[:, 0]]
            continue
        near, far = start[:, :, at], between[:, None, at[:, :, None], at[:, None, :]]
        orders = [_in_order(near, far, order) for order in itertools.permutations(range(size))]
        found[:, :, columns] = functools.reduce(_cheaper, orders)
    np.minimum(found[0], FORBIDDEN, out=found[0])
    return found


def _in_order(near: IntArray, far: IntArray, order: tuple[int, ...]) -> IntArray:
    """The targets made one after the other, each from the start or from one made before.

    ``near``: [number, p, group, k]; ``far``: [number, 1, group, k, k]. Returns [number, p, group].
    """
    made = [
        functools.reduce(_cheaper, (near[..., target], *(far[..., o, target] for o in order[:index])))
        for index, target in enumerate(order)
    ]
    return np.asarray(np.sum(made, axis=0))


def _cheaper(one: IntArray, other: IntArray) -> IntArray:
    """By the sum of forward and backward, the first of equals."""
    return np.where(other[:2].sum(axis=0) < one[:2].sum(axis=0), other, one)
