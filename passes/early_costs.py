"""What runs before the first microbatch, priced: once a step, of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autopar.ir.graph import SOURCES, Node
from autopar.ir.layout import Layout
from autopar.ir.program import MICROBATCH_AXIS
from autopar.passes.early import Use, timing, without_time
from autopar.passes.edges import Consumer
from autopar.passes.ground import Ground
from autopar.passes.positions import node_key
from autopar.passes.problem import IntArray
from autopar.passes.segments import SegmentBuilder
from autopar.passes.strategies import Strategy
from autopar.passes.values import Values

if TYPE_CHECKING:
    from autopar.passes.build import Model


@dataclass(frozen=True, kw_only=True)
class EarlyCosts:
    """Of the main graph's ``values``, whose variables are made."""

    model: Model
    ground: Ground
    into: SegmentBuilder
    values: Values

    def add(self) -> None:
        """Add the tables of operations that depend on no parameter, early or not, and of early edges.

        Ensures: no value has a consumer any more that is early alone, or that it crosses to.
        """
        graph, values = self.model.graph, self.values
        uses = {
            name: [self._use(name, each) for each in consumers] for name, consumers in values.consumers.items()
        }
        found = timing(graph, uses, self.model.pure)
        for node in graph.nodes:
            name = node.results[0].name
            if name not in values.variable:  # a parameter, or what the loss does not depend on
                continue
            if node.target not in SOURCES and name in self.model.pure:
                self._node(node, late=name in found.late, early=name in found.early)
            for value in node.results:
                pairs = list(zip(values.consumers[value.name], uses[value.name], strict=True))
                values.consumers[value.name] = [each for each, use in pairs if found.is_late(use)]
                self._edge(value.name, [(each, use) for each, use in pairs if found.is_early(use)])

    def _use(self, name: str, consumer: Consumer) -> Use:
        variable = self.into.variables[consumer.variable]
        have = self.values.layouts.get(name)
        crosses = have is not None and name in self.model.pure and _times(have).isdisjoint(_times(consumer.needs))
        return Use(variable.name if variable.kind == "node" else None, crosses)

    def _node(self, node: Node, *, late: bool, early: bool) -> None:
        graph, key = self.model.graph, node_key(self.model.graph, node)
        variable = self.values.variable[key[1]]
        legal = self.ground.legal[key]
        if late:
            prices = self.ground.prices(graph, node, legal)
            if prices.any():
                self.into.node(variable, *prices, expensive=self.ground.keeps[key].expensive)
        if early:
            self.into.once(variable, self._whole_ns(node, legal))

    def _whole_ns(self, node: Node, legal: Sequence[Strategy]) -> IntArray:
        """Of the whole batch, [strategy]."""
        graph, key = self.model.graph, node_key(self.model.graph, node)
        types = self.model.types(graph, node)
        pricing = replace(self.ground.pricing, mesh=without_time(legal[0].results[0]).mesh)
        costs = [
            pricing.op_costs(node, self.model.rules[key], early(each), self.model.shapes[key], types)[0]
            for each in legal
        ]
        return np.array([pricing.op_ns(cost) for cost in costs], dtype=np.int64)

    def _edge(self, name: str, consumers: Sequence[tuple[Consumer, Use]]) -> None:
        if not consumers:
            return
        have = [without_time(layout) for layout in self.values.layouts[name]]
        wholes = [
            Consumer(each.variable, tuple([without_time(need) for need in each.needs]), each.saves and use.crosses)
            for each, use in consumers
        ]
        self.into.edge(
            name, self.model.facts[self.model.graph.name, name], self.values.variable[name], have, wholes,
            free=[False] * len(have), once=True,
        )  # fmt: skip


def early(chosen: Strategy) -> Strategy:
    """The strategy for the whole batch."""
    return Strategy(
        chosen.choices[:-1], tuple(None if each is None else without_time(each) for each in chosen.operands),
        tuple(without_time(each) for each in chosen.results),
    )  # fmt: skip


def _times(layouts: Sequence[Layout]) -> set[object]:
    """How they stand in time."""
    return {layout[MICROBATCH_AXIS] for layout in layouts}
