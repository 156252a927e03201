"""What edges of the graph cost: a value brought from the layouts it is made in to what its consumers need.

Many edges of a model are alike (each normalisation, each projection): equal questions are answered once a mesh.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.ir.layout import Layout
from autopar.passes.conversions import Conversions, hub_sets, trees_ns
from autopar.passes.facts import Fact
from autopar.passes.pricing import local_bytes
from autopar.passes.problem import IntArray
from autopar.passes.storage import as_used, settled_axes
from autopar.passes.timeless import marks

Groups: TypeAlias = tuple[tuple[Layout, ...], ...]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Consumer:
    """A variable and the layout that each of its entries needs of a value; ``saves``: kept for backward."""

    variable: int
    needs: tuple[Layout, ...]
    saves: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """[layout it is made in, set of layouts it is needed in]: nanoseconds, bytes saved for backward for each
    microbatch, and (where it was asked for) bytes that selective recomputation keeps. ``aside_ns``: how long of forward
    and backward parameters go on travelling. Nobody may write to them.
    """

    forward_ns: IntArray
    backward_ns: IntArray
    saved: IntArray
    keeps: IntArray | None
    aside_ns: tuple[IntArray, IntArray] | None = None


@dataclass(eq=False)
class Edges:
    """Edges on one mesh, each kind priced once."""

    conversions: Conversions
    parameters: dict[tuple[object, ...], Edge] = field(default_factory=dict)  # in any number of microbatches
    known: dict[tuple[object, ...], Edge] = field(default_factory=dict)
    sets: dict[tuple[tuple[Layout, ...], ...], Groups] = field(default_factory=dict)
    members: dict[int, tuple[Groups, dict[Layout, int], BoolArray]] = field(default_factory=dict)
    marked: dict[int, tuple[Groups, object]] = field(default_factory=dict)

    def groups(self, consumers: Sequence[Consumer]) -> Groups:
        """Sets of layouts that serve all consumers; of a single one each layout that it may need."""
        demands = tuple([consumer.needs for consumer in consumers])
        found = self.sets.get(demands)
        if found is None:
            single = tuple((layout,) for layout in dict.fromkeys(demands[0]))
            found = self.sets[demands] = single if len(demands) == 1 else hub_sets(demands)
        return found

    def serving(self, groups: Groups, needs: Sequence[Layout]) -> BoolArray:
        """Whether each set (one that ``groups`` made) holds each layout, [set, layout]."""
        if id(groups) not in self.members:  # which is kept, so that nothing else has its id
            at = {layout: i for i, layout in enumerate(dict.fromkeys(itertools.chain.from_iterable(groups)))}
            holds = np.zeros((len(groups), len(at) + 1), dtype=bool)  # the last one: no layout of any set
            for row, group in zip(holds, groups, strict=True):
                row[[at[layout] for layout in group]] = True
            self.members[id(groups)] = groups, at, holds
        _, at, holds = self.members[id(groups)]
        return holds[:, [at.get(layout, len(at)) for layout in needs]]

    def value(
        self, fact: Fact, have: Sequence[Layout], consumers: Sequence[Consumer], *, free: Sequence[bool],
        expensive: bool, crosses_time: bool, selective: bool,
    ) -> Edge:  # fmt: skip
        """Of an operation's result. ``free[i]``: in layout i it is held anyway, it need not be saved again."""
        demands = tuple([(consumer.needs, consumer.saves) for consumer in consumers])
        key = fact, tuple(have), demands, tuple(free), expensive, crosses_time
        edge = self.known.get(key)
        if edge is None:
            groups = self.groups(consumers)
            haves = {layout: number for number, layout in enumerate(dict.fromkeys(have))}
            needs = list(dict.fromkeys([layout for group in groups for layout in group]))
            start = self.conversions.matrix(fact, list(haves), needs, crosses_time=crosses_time)
            prices = start  # of sets of one layout each
            if any(len(group) > 1 for group in groups):
                between = self.conversions.matrix(fact, needs, needs, crosses_time=crosses_time)
                at = {layout: number for number, layout in enumerate(needs)}
                prices = trees_ns(start, between, [[at[layout] for layout in group] for group in groups])
            if len(haves) < len(have):
                prices = prices[:, [haves[layout] for layout in have]]
            edge = self.known[key] = _edge(prices, _saved(fact, have, groups, _keepers(consumers), free), None)
        if selective and edge.keeps is None:
            keeps = self.conversions.keeping.bytes(fact, have, self.groups(consumers), expensive=expensive)
            edge = self.known[key] = replace(edge, keeps=keeps)
        return edge

    def parameter(
        self, fact: Fact, layouts: Sequence[Layout], consumers: Sequence[Consumer], *, trainable: bool,
        selective: bool,
    ) -> Edge:  # fmt: skip
        """Of a parameter: [layout it is stored in, set of layouts it is needed in]."""
        groups, keepers = self.groups(consumers), _keepers(consumers)
        saves = [layout in keepers for layout in dict.fromkeys(itertools.chain.from_iterable(groups))]
        key = fact, marks(layouts), self.marks(groups), tuple(saves), trainable, selective
        edge = self.parameters.get(key)
        if edge is None:
            starts = [
                [as_used(layout, settled_axes(layout, group, trainable=trainable)) for group in groups]
                for layout in layouts
            ]
            shape = (len(starts), len(groups))
            saved, keeps = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
            prices = np.zeros((self.conversions.numbers, *shape), np.int64)
            for i, row in enumerate(starts):
                for g, group in enumerate(groups):
                    if len(group) == 1:
                        prices[:, i, g] = self.conversions.cost_ns(fact, row[g], group[0])
                    else:
                        start = self.conversions.matrix(fact, [row[g]], group)
                        between = self.conversions.matrix(fact, group, group)
                        prices[:, i, g] = trees_ns(start, between, [range(len(group))])[:, 0, 0]
                    own = row[g].local_shape(fact.type.shape)
                    saved[i, g] = sum(
                        local_bytes(layout, fact.type) for layout in group
                        if layout in keepers and layout.local_shape(fact.type.shape) != own
                    )  # fmt: skip
                    if selective:
                        keeps[i, g] = self.conversions.keeping.bytes(fact, [row[g]], [group], expensive=False)[0, 0]
            edge = self.parameters[key] = _edge(prices, saved, keeps if selective else None)
        return edge

    def marks(self, groups: Groups) -> object:
        """As ``timeless.marks``, of sets that ``groups`` made."""
        if id(groups) not in self.marked:  # which is kept, so that nothing else has its id
            self.marked[id(groups)] = groups, tuple(map(marks, groups))
        return self.marked[id(groups)][1]


def _edge(prices: IntArray, saved: IntArray, keeps: IntArray | None) -> Edge:
    forward, backward, *aside = prices
    return Edge(forward, backward, saved, keeps, (aside[0], aside[1]) if aside and prices.any() else None)


def _keepers(consumers: Sequence[Consumer]) -> frozenset[Layout]:
    return frozenset(layout for consumer in consumers if consumer.saves for layout in consumer.needs)


def _saved(
    fact: Fact, have: Sequence[Layout], groups: Groups, keepers: frozenset[Layout], free: Sequence[bool]
) -> IntArray:
    bytes_of = {layout: local_bytes(layout, fact.type) for group in groups for layout in group if layout in keepers}
    rows = [
        [sum(bytes_of[t] for t in group if t in keepers and not (held and t == layout)) for group in groups]
        for layout, held in zip(have, free, strict=True)
    ]
    return np.array(rows, dtype=np.int64).reshape(len(have), len(groups))
