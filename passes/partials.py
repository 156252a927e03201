"""On which axes a value may be Partial at all: only there are strategies that pass it on worth offering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.rules import NodeRule
from autopar.passes.positions import Positions, flat_operands, node_key

Key: TypeAlias = tuple[str, str]


def partial_axes(
    graph: Graph, rules: Mapping[Key, NodeRule], found: Positions, mesh: Mesh,
    known: Callable[[Key, str, int], bool] | None = None,
) -> dict[Key, frozenset[str]]:  # fmt: skip
    """Axes on which each value may be Partial: from contracted factors, passed on by linear operations.

    ``known``: what ``contracts`` says of a node on an axis of a size.
    """
    visit = _Visit(graph, rules, mesh, known or (lambda key, *axis: contracts(rules[key], found, key, *axis)))
    for _ in range(2):  # what a block carries out it may carry in again
        visit.part(graph)
    return visit.known


def contracts(rule: NodeRule, found: Positions, key: Key, axis: str, size: int) -> bool:
    """Whether devices along an axis may each make a part of a sum: of a factor that a node contracts."""
    kept = {factor for dims in rule.results for dim in dims for factor in dim}
    return rule.reduce == "sum" and any(
        factor not in kept and found.offered(key, factor, rule.sizes[factor], axis, size) for factor in rule.choosable
    )


class _Visit:
    """``known``: of each value."""

    def __init__(
        self, root: Graph, rules: Mapping[Key, NodeRule], mesh: Mesh, contracts: Callable[[Key, str, int], bool]
    ) -> None:
        self.root, self.rules, self.mesh, self.contracts = root, rules, mesh, contracts
        self.known: dict[Key, frozenset[str]] = {}

    def part(self, part: Graph) -> None:
        known = self.known
        for node in part.nodes:
            if node.target == "call":
                self._call(part, node)
                continue
            axes = frozenset[str]() if node.target in SOURCES else self._axes(part, node)
            for value in node.results:
                known[part.name, value.name] = known.get((part.name, value.name), frozenset()) | axes

    def _axes(self, part: Graph, node: Node) -> frozenset[str]:
        key, operands = node_key(part, node), flat_operands(node)
        axes = frozenset(axis for axis, size in self.mesh.axes if self.contracts(key, axis, size))
        for members in self.rules[key].partial:
            for member in members:
                name = operands[member] if member < len(operands) else None
                if name is not None:
                    axes |= self.known[part.name, name]
        return axes

    def _call(self, part: Graph, node: Node) -> None:
        known, block = self.known, self.root.block(str(node.attr("block")))
        inputs = [source.result.name for source in block.sources("input")]
        carried = int(str(node.attr("carried")))
        for index, (outer, inner) in enumerate(zip(flat_operands(node), inputs, strict=True)):
            axes = known[part.name, outer or ""] if index < carried else frozenset[str]()
            if index < carried:
                axes |= known.get((block.name, block.outputs[index]), frozenset())
            known[block.name, inner] = known.get((block.name, inner), frozenset()) | axes
        self.part(block)
        for value, name in zip(node.results, block.outputs, strict=True):
            known[part.name, value.name] = known[block.name, name]
