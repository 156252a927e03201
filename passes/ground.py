"""What all problems of one mesh share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autopar.ir.convert import local_numel
from autopar.ir.graph import Graph, Node
from autopar.ir.layout import Layout
from autopar.ir.optable import row
from autopar.passes.constrain import constrained
from autopar.passes.conversions import Conversions
from autopar.passes.edges import Edges
from autopar.passes.kinds import Kinds
from autopar.passes.partials import PartialAxes, partial_axes
from autopar.passes.positions import Positions, node_key
from autopar.passes.pricing import Pricing, local_bytes
from autopar.passes.problem import IntArray
from autopar.passes.regions import Region
from autopar.passes.strategies import Strategy, strategies
from autopar.passes.timeless import Timeless

if TYPE_CHECKING:
    from autopar.passes.build import Model

# By operand (flattened) and by result: one for each strategy.
Layouts: TypeAlias = tuple[tuple[tuple[Layout, ...], ...], tuple[tuple[Layout, ...], ...]]


class Ground:
    """What all problems of one mesh share, whatever their modes: strategies and prices of conversions, made once.

    ``legal``: strategies of each node within the user's constraints. ``timeless``: what parameters cost, in any number
    of microbatches. ``regions``: of each graph. ``kinds``: of nodes, the same on every mesh.
    """

    def __init__(
        self, model: Model, found: Positions, pricing: Pricing, alike: Kinds | None = None,
        timeless: Timeless | None = None,
    ) -> None:  # fmt: skip
        self.found, self.pricing, self.timeless = found, pricing, timeless or Timeless()
        self.edges = Edges(Conversions(pricing), self.timeless.edges)
        self._kinds = alike or Kinds(model, found)
        self.keeps = self._kinds.keeps
        self.constrained = constrained(model.graph, model.settings.constraints)
        self.legal: dict[tuple[str, str], tuple[Strategy, ...]] = {}
        self.regions: dict[str, Mapping[str, Region]] = {}
        self._model = model
        self._strategies: dict[object, tuple[Strategy, ...]] = {}
        self._prices: dict[object, tuple[tuple[Strategy, ...], IntArray]] = {}
        self._trained: dict[str, int] = {}
        self._layouts: dict[int, tuple[tuple[Strategy, ...], Layouts]] = {}

    @cached_property
    def partial(self) -> PartialAxes:
        """Axes on which each value may be Partial."""
        model = self._model
        return partial_axes(model.graph, model.rules, self.found, self.pricing.mesh, self._kinds.partial_values)

    def strategies(self, key: tuple[str, str], partial: tuple[frozenset[str], ...]) -> tuple[Strategy, ...]:
        """Of a node, those of alike nodes worked out once. ``partial[i]``: axes on which operand i may be P."""
        number = self._kinds[key]
        kind = number, partial
        found = self._strategies.get(kind)
        if found is None:
            rule, shapes, known = self._model.rules[key], self._model.shapes[key], self._kinds.choices[number]
            found = strategies(rule, self.found, key, shapes, self.pricing.mesh, partial, known)
            self._strategies[kind] = found
        return found

    def layouts(self, legal: tuple[Strategy, ...]) -> Layouts:
        """What each strategy needs of each operand that is present, and gives as each result; one object for all
        that ask with the same one."""
        if id(legal) not in self._layouts:  # which is kept, so that nothing else has its id
            operands = tuple(
                tuple(at for at in found if at is not None) for found in zip(*(s.operands for s in legal), strict=True)
            )
            self._layouts[id(legal)] = legal, (operands, tuple(zip(*(s.results for s in legal), strict=True)))
        return self._layouts[id(legal)][1]

    def prices(self, graph: Graph, node: Node, legal: tuple[Strategy, ...]) -> IntArray:
        """[8, strategy]: ns of computing forward and backward; bytes saved, bytes held in passing, and of those saved
        what is neither an operand nor a result; ns of communication inside, forward and as much backward; ns for which
        computing may cover other communication, forward and backward."""
        kind = self._kinds[node_key(graph, node)], id(legal)
        if kind not in self._prices:
            self._prices[kind] = legal, self._priced(graph, node, legal)
        return self._prices[kind][1]

    def trained(self, graph: Graph) -> int:
        """How many trained parameters a block or the main graph has, 1 at least."""
        if graph.name not in self._trained:
            stored = [self._model.stored(graph, node) for node in graph.sources("param")]
            self._trained[graph.name] = max(1, sum(one.trainable and not one.buffer for one in stored))
        return self._trained[graph.name]

    def together(self, shape: tuple[int, ...]) -> int:
        """With how many parameters one like this is taken to wait for the sum at the end of a step, itself included.

        Norms and biases wait wherever an axis cuts what they are added to, and go in one collective. What has more
        dimensions may be cut instead, and pays for a collective of its own.
        """
        return self._kinds.vectors if len(shape) < 2 else 1

    def _priced(self, graph: Graph, node: Node, legal: tuple[Strategy, ...]) -> IntArray:
        key = node_key(graph, node)
        types = self._model.types(graph, node)
        rule, shapes, entry = self._model.rules[key], self._model.shapes[key], row(node)
        out = np.zeros((8, len(legal)), dtype=np.int64)
        for i, chosen in enumerate(legal):
            forward, backward = self.pricing.op_costs(node, rule, chosen, shapes, types)
            (out[0, i], out[6, i]), (out[1, i], out[7, i]) = self.pricing.timed(forward), self.pricing.timed(backward)
            if entry.keeps("r") and any(shapes.grads):
                out[2, i] = local_bytes(chosen.results[0], node.results[0].type)
            if "mask" in entry.saves and any(shapes.grads):
                out[2, i] = local_numel(chosen.results[0], node.results[0].type.shape)
            if entry.inner and any(shapes.grads):
                out[4, i] = self.pricing.inner_bytes(rule, entry, chosen.choices, node.results[0].type.dtype)
                out[2, i] += out[4, i]
            if entry.exchanged:
                out[5, i] = self.pricing.exchange_ns(rule, entry, chosen.choices, node.results[0].type.dtype)
            if entry.op_class == "loss" and chosen.operands[0] is not None and types[0] is not None:
                out[3, i] = local_bytes(chosen.operands[0], types[0])  # the gradient of the logits
        return out
