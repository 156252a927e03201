"""What all problems of one mesh share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autopar.ir.convert import local_numel
from autopar.ir.graph import Node
from autopar.ir.optable import row
from autopar.ir.types import TensorType
from autopar.passes.constrain import constrained
from autopar.passes.conversions import Conversions
from autopar.passes.edges import Edges
from autopar.passes.partials import partial_axes
from autopar.passes.positions import Positions
from autopar.passes.pricing import Pricing, local_bytes
from autopar.passes.problem import IntArray
from autopar.passes.storage import Kept
from autopar.passes.strategies import Strategy, strategies

if TYPE_CHECKING:
    from autopar.passes.build import Model


class Ground:
    """What all problems of one mesh share, whatever their modes: strategies and prices of conversions, made once.

    ``legal``: strategies of each node within the user's constraints. ``kept``: parameters by all that keeping them
    follows from.
    """

    def __init__(self, model: Model, found: Positions, pricing: Pricing) -> None:
        self.found, self.pricing = found, pricing
        self.edges = Edges(Conversions(pricing))
        self.partial = partial_axes(model.graph, model.rules, found, pricing.mesh)
        self.constrained = constrained(model.graph, model.settings.constraints)
        self.legal: dict[tuple[str, str], tuple[Strategy, ...]] = {}
        self.kept: dict[object, Kept] = {}
        self._model = model
        self._kinds: dict[tuple[str, str], tuple[object, ...]] = {}
        self._strategies: dict[object, tuple[Strategy, ...]] = {}
        self._prices: dict[object, IntArray] = {}

    def strategies(self, key: tuple[str, str], partial: tuple[frozenset[str], ...]) -> tuple[Strategy, ...]:
        """Of a node, those of alike nodes worked out once. ``partial[i]``: axes on which operand i may be P."""
        kind = self._kind(key), partial
        if kind not in self._strategies:
            rule, shapes = self._model.rules[key], self._model.shapes[key]
            self._strategies[kind] = strategies(rule, self.found, key, shapes, self.pricing.mesh, partial)
        return self._strategies[kind]

    def prices(
        self, node: Node, key: tuple[str, str], types: tuple[TensorType | None, ...], legal: tuple[Strategy, ...]
    ) -> IntArray:
        """Forward and backward ns, bytes saved and bytes held in passing, [4, strategy]. ``types``: of operands."""
        types = (*types, *(value.type for value in node.results))
        kind = self._kind(key), row(node), node.target, types, legal
        if kind not in self._prices:
            self._prices[kind] = self._priced(node, key, types, legal)
        return self._prices[kind]

    def _priced(
        self, node: Node, key: tuple[str, str], types: tuple[TensorType | None, ...], legal: tuple[Strategy, ...]
    ) -> IntArray:
        rule, shapes, entry = self._model.rules[key], self._model.shapes[key], row(node)
        out = np.zeros((4, len(legal)), dtype=np.int64)
        for i, chosen in enumerate(legal):
            forward, backward = self.pricing.op_costs(node, rule, chosen, shapes, types)
            out[0, i], out[1, i] = self.pricing.op_ns(forward), self.pricing.op_ns(backward)
            if entry.keeps("r") and any(shapes.grads):
                out[2, i] = local_bytes(chosen.results[0], node.results[0].type)
            if "mask" in entry.saves and any(shapes.grads):
                out[2, i] = local_numel(chosen.results[0], node.results[0].type.shape)
            if entry.op_class == "loss" and chosen.operands[0] is not None and types[0] is not None:
                out[3, i] = local_bytes(chosen.operands[0], types[0])  # the gradient of the logits
        return out

    def _kind(self, key: tuple[str, str]) -> tuple[object, ...]:
        """Nodes of equal kinds have equal strategies, where equal axes may be partial."""
        if key not in self._kinds:
            rule, found = self._model.rules[key], self.found
            self._kinds[key] = (
                tuple(rule.sizes.items()), rule.operands, rule.results, rule.whole, rule.partial, rule.reduce,
                rule.contiguous, rule.uneven, rule.classes, self._model.shapes[key],
                tuple(sorted(found.factors[key].items())), found.uneven.get(key, frozenset()),
            )  # fmt: skip
        return self._kinds[key]
