"""Cross-entropy in the three parts that may be sharded over classes, and back again.

    %m = autopar.row_max(%logits)                       Partial(max) where the classes are sharded
    %s = autopar.cross_entropy_stats(%logits, %t, %m)   Partial(sum): sum of exponentials, picked logit
    %l = autopar.cross_entropy_from_stats(%s, %t)

``open_losses`` before strategies are made, ``fuse`` after lowering: where no axis took the classes the
three become one fused cross-entropy again.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.graph import Graph, Node, Value
from autopar.ir.types import TensorType


def open_losses(graph: Graph) -> Graph:
    """Every ``autopar.cross_entropy`` without class weights or label smoothing becomes its three parts."""
    types = {name: value.type for name, value in graph.values().items()}
    nodes: list[Node] = []
    for node in graph.nodes:
        plain = node.target == "autopar.cross_entropy" and len(node.operands) == 2
        nodes += _parts(node, types) if plain and not node.attr("label_smoothing") else [node]
    blocks = tuple(open_losses(block) for block in graph.blocks)
    return replace(graph, nodes=tuple(nodes), blocks=blocks)


def _parts(node: Node, types: dict[str, TensorType]) -> list[Node]:
    logits, target = node.operands
    assert isinstance(logits, str)
    name, rows = node.result.name, types[logits].shape[:-1]
    top = Value(f"{name}_max", TensorType(types[logits].dtype, rows))
    stats = Value(f"{name}_stats", TensorType(node.result.type.dtype, (*rows, 2)))
    ignored = tuple((key, value) for key, value in node.attrs if key == "ignore_index")
    return [
        Node(results=(top,), target="autopar.row_max", operands=(logits,), source=node.source),
        Node(results=(stats,), target="autopar.cross_entropy_stats", operands=(logits, target, top.name),
             attrs=ignored, source=node.source),
        Node(results=node.results, target="autopar.cross_entropy_from_stats", operands=(stats.name, target),
             attrs=ignored, source=node.source),
    ]  # fmt: skip


def fuse(graph: Graph) -> Graph:
    """Undo ``open_losses`` where the classes are whole on every device."""
    producers, consumers = graph.producers(), graph.consumers()
    dead: set[str] = set()
    fused: dict[str, Node] = {}
    for node in graph.nodes:
        stats = (
            producers.get(str(node.operands[0]))
            if node.target == "autopar.cross_entropy_from_stats"
            else None
        )
        if stats is None or stats.target != "autopar.cross_entropy_stats" or stats.attr("start"):
            continue
        top = producers[str(stats.operands[2])]
        alone = len(consumers[stats.result.name]) == len(consumers[top.results[0].name]) == 1
        if top.target == "autopar.row_max" and alone and top.operands[0] == stats.operands[0]:
            attrs = dict(node.attrs)
            if node.result.type.dtype != graph.values()[str(stats.operands[0])].type.dtype:
                attrs["dtype"] = node.result.type.dtype
            fused[node.result.name] = replace(
                node, target="autopar.cross_entropy", operands=(stats.operands[0], node.operands[1]),
                attrs=tuple(sorted(attrs.items())),
            )  # fmt: skip
            dead |= {stats.result.name, top.results[0].name}
    kept = [n for n in graph.nodes if n.results[0].name not in dead]
    return replace(graph, nodes=tuple(fused.get(n.results[0].name, n) for n in kept))
