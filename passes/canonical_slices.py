"""Slices that together are a whole value become one split.

A loop over positions takes ``x[:, 0]``, ``x[:, 1]`` and so on: consumers without end of one value, each with a
layout of its own to choose. As pieces of one operation they share one, and autograd adds up one gradient
instead of as many as there are pieces.
"""

from __future__ import annotations

from autopar.ir.graph import Graph, Node, Value, sorted_attrs
from autopar.passes.canonical_emit import finished
from autopar.passes.canonical_views import integer, operand

_FEWEST = 3
"""Two halves stay slices: what is done with them is mostly a rotation, which is cheaper whole."""


def merge_slices(graph: Graph) -> Graph:
    """Requires and ensures: a canonical graph of one level; the same outputs and gradients."""
    splits = {members[0].result.name: members for members in _tilings(graph)}
    merged = {node.result.name for members in splits.values() for node in members}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.target != "aten.slice.Tensor" or node.result.name not in merged:
            nodes.append(node)
        elif node.result.name in splits:
            nodes.append(_split(node, _ordered(splits[node.result.name])))
    return finished(graph, nodes, graph.outputs) if splits else graph


def _split(first: Node, pieces: list[Node]) -> Node:
    dim = integer(pieces[0].attr("dim"))
    sizes = tuple(piece.result.type.shape[dim] for piece in pieces)
    return Node(
        results=tuple(Value(piece.result.name, piece.result.type) for piece in pieces),
        target="aten.split_with_sizes.default",
        operands=first.operands,
        attrs=sorted_attrs({"split_sizes": sizes, "dim": dim}),
        source=first.source,
    )


def _ordered(members: list[Node]) -> list[Node]:
    return sorted(members, key=lambda node: integer(node.attr("start")))


def _tilings(graph: Graph) -> list[list[Node]]:
    """Slices of one value along one dim that meet end to end and leave nothing out, in the graph's order."""
    groups: dict[tuple[str, int], list[Node]] = {}
    for node in graph.nodes:
        if node.target == "aten.slice.Tensor" and node.attr("step") is None:
            groups.setdefault((operand(node), integer(node.attr("dim"))), []).append(node)
    values = graph.values()
    found = []
    for (name, dim), members in groups.items():
        bounds = [(integer(node.attr("start")), integer(node.attr("end"))) for node in _ordered(members)]
        ends = [0, *(end for _, end in bounds)]
        meet = [start for start, _ in bounds] == ends[:-1] and ends[-1] == values[name].type.shape[dim]
        if meet and len(members) >= _FEWEST:
            found.append(members)
    return found
