"""On which axes a value may be Partial at all: only there are strategies that pass it on worth offering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from autopar.ir.calls import carried, returned
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.rules import NodeRule
from autopar.passes.positions import Positions, flat_operands, node_key

Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, eq=False)
class PartialAxes:
    """``values``: by axis those that may be Partial there, each with its graph."""

    values: Mapping[str, AbstractSet[Key]]

    def __getitem__(self, value: Key) -> frozenset[str]:
        return frozenset([axis for axis, found in self.values.items() if value in found])


def partial_axes(
    graph: Graph, rules: Mapping[Key, NodeRule], found: Positions, mesh: Mesh,
    known: Callable[[str, int], AbstractSet[Key]] | None = None,
) -> PartialAxes:  # fmt: skip
    """Axes on which each value may be Partial. ``known``: what ``partial_values`` says of an axis of a size."""
    on_axis = known or partial(partial_values, graph, rules, found)
    return PartialAxes({axis: on_axis(axis, size) for axis, size in mesh.axes})


def partial_values(
    graph: Graph, rules: Mapping[Key, NodeRule], found: Positions, axis: str, size: int
) -> AbstractSet[Key]:
    """Values that may be Partial on an axis: from contracted factors, passed on by linear operations."""
    visit = _Visit(graph, rules, lambda key: _contracts(rules[key], found, key, axis, size))
    for _ in range(2):  # what a block carries out it may carry in again
        visit.part(graph)
    return visit.values


def _contracts(rule: NodeRule, found: Positions, key: Key, axis: str, size: int) -> bool:
    """Whether devices along an axis may each make a part of a sum: of a factor that a node contracts."""
    kept = {factor for dims in rule.results for dim in dims for factor in dim}
    return rule.reduce == "sum" and any(
        factor not in kept and found.offered(key, factor, rule.sizes[factor], axis, size) for factor in rule.choosable
    )


class _Visit:
    """``values``: those that may be Partial."""

    def __init__(self, root: Graph, rules: Mapping[Key, NodeRule], contracts: Callable[[Key], bool]) -> None:
        self.root, self.rules, self.contracts = root, rules, contracts
        self.values: set[Key] = set()

    def part(self, part: Graph) -> None:
        for node in part.nodes:
            if node.target == "call":
                self._call(part, node)
            elif node.target not in SOURCES and self._in_parts(part, node):
                self.values.update((part.name, value.name) for value in node.results)

    def _in_parts(self, part: Graph, node: Node) -> bool:
        """Whether a node makes parts of a sum, or passes them on."""
        key, operands = node_key(part, node), flat_operands(node)
        members = {member for members in self.rules[key].partial for member in members if member < len(operands)}
        return any((part.name, operands[member]) in self.values for member in members) or self.contracts(key)

    def _call(self, part: Graph, node: Node) -> None:
        values, block = self.values, self.root.block(str(node.attr("block")))
        inputs = [source.result.name for source in block.sources("input")]
        handed = carried(node)
        pairs = zip(flat_operands(node)[:handed], block.outputs[:handed], inputs[:handed], strict=True)
        for outer, out, inner in pairs:
            if (part.name, outer or "") in values or (block.name, out) in values:
                values.add((block.name, inner))
        self.part(block)
        outs = returned(node, block)
        values.update((part.name, value.name) for _, value, name in outs if (block.name, name) in values)
