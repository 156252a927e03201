"""Which nodes of a model are alike: the same operation on the same types, with the same places for axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.ir.graph import SOURCES
from autopar.ir.optable import row
from autopar.passes.positions import Positions, all_graphs, flat_operands, node_key

if TYPE_CHECKING:
    from autopar.passes.build import Model


def kinds(model: Model, found: Positions) -> dict[tuple[str, str], int]:
    """A number for each node, equal for nodes whose strategies and prices are equal on every mesh, where equal axes may
    be partial."""
    numbers: dict[object, int] = {}
    known = {}
    for part in all_graphs(model.graph):
        for node in part.nodes:
            if node.target in (*SOURCES, "call"):
                continue
            key = node_key(part, node)
            rule = model.rules[key]
            operands = (None if name is None else model.facts[part.name, name].type for name in flat_operands(node))
            kind = (
                node.target, row(node), tuple(operands), tuple(value.type for value in node.results),
                tuple(rule.sizes.items()), rule.operands, rule.results, rule.whole, rule.partial, rule.reduce,
                rule.contiguous, rule.uneven, rule.classes, model.shapes[key],
                tuple(sorted(found.factors[key].items())), found.uneven.get(key, frozenset()),
                key in found.unbound,
            )  # fmt: skip
            known[key] = numbers.setdefault(kind, len(numbers))
    return known
