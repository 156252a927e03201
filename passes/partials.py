"""On which axes a value may be Partial at all: only there are strategies that pass it on worth offering."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.rules import NodeRule
from autopar.passes.positions import Positions, flat_operands, node_key


def partial_axes(
    graph: Graph, rules: Mapping[tuple[str, str], NodeRule], found: Positions, mesh: Mesh
) -> dict[tuple[str, str], frozenset[str]]:
    """Axes on which each value may be Partial: from contracted factors, passed on by linear operations."""
    known: dict[tuple[str, str], frozenset[str]] = {}
    for _ in range(2):  # what a block carries out it may carry in again
        _visit(graph, graph, rules, found, mesh, known)
    return known


def _visit(
    root: Graph, part: Graph, rules: Mapping[tuple[str, str], NodeRule], found: Positions, mesh: Mesh,
    known: dict[tuple[str, str], frozenset[str]],
) -> None:  # fmt: skip
    for node in part.nodes:
        if node.target == "call":
            _call(root, part, node, rules, found, mesh, known)
            continue
        axes = frozenset[str]()
        if node.target not in SOURCES:
            axes = _axes(part, node, rules[node_key(part, node)], found, mesh, known)
        for value in node.results:
            known[part.name, value.name] = known.get((part.name, value.name), frozenset()) | axes


def _axes(
    part: Graph, node: Node, rule: NodeRule, found: Positions, mesh: Mesh,
    known: Mapping[tuple[str, str], frozenset[str]],
) -> frozenset[str]:  # fmt: skip
    operands = flat_operands(node)
    inside = {factor for dims in rule.results for dim in dims for factor in dim}
    axes = {
        axis
        for axis, size in mesh.axes
        for factor in rule.choosable()
        if rule.reduce == "sum" and factor not in inside
        and found.offered(node_key(part, node), factor, rule.sizes[factor], axis, size)
    }  # fmt: skip
    for members in rule.partial:
        for member in members:
            name = operands[member] if member < len(operands) else None
            if name is not None:
                axes |= known[part.name, name]
    return frozenset(axes)


def _call(
    root: Graph, part: Graph, node: Node, rules: Mapping[tuple[str, str], NodeRule], found: Positions, mesh: Mesh,
    known: dict[tuple[str, str], frozenset[str]],
) -> None:  # fmt: skip
    block = root.block(str(node.attr("block")))
    inputs = [source.result.name for source in block.sources("input")]
    carried = int(str(node.attr("carried")))
    for index, (outer, inner) in enumerate(zip(flat_operands(node), inputs, strict=True)):
        axes = known[part.name, outer or ""] if index < carried else frozenset[str]()
        if index < carried:
            axes |= known.get((block.name, block.outputs[index]), frozenset())
        known[block.name, inner] = known.get((block.name, inner), frozenset()) | axes
    _visit(root, block, rules, found, mesh, known)
    for value, name in zip(node.results, block.outputs, strict=True):
        known[part.name, value.name] = known[block.name, name]
