"""Nodes that no axis's name binds: heads with more parameters than data, and what follows them to the loss.

Split over the batch, such a node has a gradient summed that is larger than what it reads. All may read that whole
instead and do the same work, and then nothing is summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from autopar.ir.graph import SOURCES, Graph
from autopar.ir.types import TensorType

Key: TypeAlias = tuple[str, str]


def unbound(graph: Graph, batched: Mapping[str, bool]) -> frozenset[Key]:
    """Keys of such nodes of the main graph, outside blocks. ``batched``: whether a value of it has a batch."""
    types = {name: value.type for name, value in graph.values().items()}
    trained = {node.result.name for node in graph.sources("param") if node.attr("trainable", True) is not False}
    learnt, free, found = set(trained), set[str](), set[Key]()
    for node in graph.nodes:
        uses, results = set(node.uses()), [value.name for value in node.results]
        if uses & learnt:
            learnt.update(results)
        if node.target in (*SOURCES, "call"):
            continue
        data = [name for name in uses & learnt - trained if batched[name]]
        if uses & free or (data and _bytes(types, uses & trained) > _bytes(types, data)):
            free.update(results)
            found.add((graph.name, results[0]))
    return frozenset(found)


def _bytes(types: Mapping[str, TensorType], names: Iterable[str]) -> int:
    return sum(types[name].nbytes for name in names)
