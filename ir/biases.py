"""Products and the biases that are added to them, which run as one operation where nothing stands between the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from autopar.ir.graph import Graph, Node, Value
from autopar.ir.recompute import is_comm

LINEAR, MATMUL, SUM = "aten.linear.default", "aten.matmul.default", "aten.add.Tensor"


def products_with_bias(graph: Graph, *, converted: bool = False) -> dict[str, Node]:
    """For each sum of a product and a vector along its last dim, by the sum's name: the product, read by it alone.

    ``converted``: also where the product is given another layout in between.
    """
    values, producers = graph.values(), graph.producers()
    reads = Counter(name for node in graph.nodes for name in node.uses()) + Counter(graph.outputs)
    found = {node.results[0].name: _product(node, values, producers, converted) for node in graph.nodes}
    return {name: made for name, made in found.items() if made is not None and reads[made.result.name] == 1}


def _product(
    node: Node, values: Mapping[str, Value], producers: Mapping[str, Node], converted: bool
) -> Node | None:
    """The product of which ``node`` is the sum with a vector along its last dim."""
    if node.target != SUM or node.attrs or len(node.operands) != 2:
        return None
    first, second = node.operands
    if not isinstance(first, str) or not isinstance(second, str):
        return None
    made, bias = producers[first], values[second].type
    while converted and is_comm(made):
        made = producers[next(made.uses())]
    if made.target not in (LINEAR, MATMUL) or len(made.operands) != 2:
        return None
    if len(values[str(made.operands[1])].type.shape) != 2:
        return None
    of = made.result.type
    alike = bias.dtype == of.dtype == node.result.type.dtype and bias.shape == of.shape[-1:]
    return made if alike else None
