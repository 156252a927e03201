"""Leave out one collective, to see that verification notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.errors import UsageError
from autopar.ir.graph import Graph, Node
from autopar.ir.program import MICROBATCH_AXIS, Program

# What is left of a sum over devices where they do not add up: the same shape, no traffic.
_WITHOUT = {"all_reduce": "identity", "reduce_scatter": "slice"}


def without_collective(program: Program, index: int) -> Program:
    """The program with its sum number ``index`` over devices, forward or backward, left out: wrong on purpose.

    Counts in program order, blocks first. Raises UsageError if there are not so many.
    """
    graphs = (*program.graph.blocks, program.graph)
    found = [(graph.name, node.result.name, way) for graph in graphs for node, way in _sums(graph)]
    if not 0 <= index < len(found):
        raise UsageError(f"the program has {len(found)} sums over devices; there is no number {index}")
    where, name, way = found[index]

    def changed(graph: Graph) -> Graph:
        if graph.name != where:
            return graph
        nodes = (_weakened(n, way) if n.results[0].name == name else n for n in graph.nodes)
        return replace(graph, nodes=tuple(nodes))

    blocks = tuple(changed(block) for block in program.graph.blocks)
    return replace(program, graph=changed(replace(program.graph, blocks=blocks)))


def _sums(graph: Graph) -> Iterator[tuple[Node, str]]:
    for node in graph.nodes:
        if not node.target.startswith("comm.") or node.attr("axis") == MICROBATCH_AXIS or node.attr("owner"):
            continue
        if node.target.removeprefix("comm.") in _WITHOUT and node.attr("reduce", "sum") == "sum":
            yield node, "forward"
        if node.attr("backward") in _WITHOUT:
            yield node, "backward"


def _weakened(node: Node, way: str) -> Node:
    if way == "forward":
        return replace(node, target=f"comm.{_WITHOUT[node.target.removeprefix('comm.')]}")
    backward = str(node.attr("backward"))
    return node.with_attrs(backward={"all_reduce": "none", "reduce_scatter": "slice"}[backward])
