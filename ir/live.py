"""What of a graph its outputs need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autopar.ir.calls import collected, without_collected
from autopar.ir.graph import Graph, Node


def live(graph: Graph) -> Graph:
    """Without nodes that no output needs, and what calls collect in vain; inputs stay, they are the signature."""
    return replace(graph, nodes=live_nodes(graph.nodes, graph.outputs))


def live_nodes(nodes: Sequence[Node], outputs: Iterable[str], *, inputs: bool = True) -> tuple[Node, ...]:
    """The nodes that an output needs; calls that collect something return it only if some of it is needed.

    ``inputs``: every input, too.
    """
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if any(value.name in wanted for value in node.results):
            kept.append(_without_unneeded(node, wanted) if node.target == "call" else node)
            wanted.update(node.uses())
        elif inputs and node.target == "input":
            kept.append(node)
    return tuple(reversed(kept))


def _without_unneeded(call: Node, wanted: set[str]) -> Node:
    needed = any(value.name in wanted for own in collected(call) for value in own)
    return call if needed else without_collected(call)
