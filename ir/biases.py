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
    reads = Counter(name for node in graph.nodes for name in node.uses()) + Counter(graph.outputs)
    values, producers = graph.values(), graph.producers()
    found = {}
    for node in graph.nodes:
        made = _summed(node, reads, producers, converted)
        if made is not None and _is_biased(node, made, values):
            found[node.result.name] = made
    return found


def _summed(node: Node, reads: Mapping[str, int], producers: Mapping[str, Node], converted: bool) -> Node | None:
    """What makes the first operand of a sum, which nothing else reads."""
    if node.target != SUM or node.attrs or len(node.operands) != 2:
        return None
    name = node.operands[0]
    while isinstance(name, str) and reads[name] == 1:
        made = producers[name]
        if not (converted and is_comm(made)):
            return made
        name = made.operands[0]
    return None


def _is_biased(node: Node, made: Node, values: Mapping[str, Value]) -> bool:
    """Whether that is a product with a matrix, and the second operand a vector of its columns."""
    if made.target not in (LINEAR, MATMUL) or len(made.operands) != 2:
        return False
    matrix, bias, of = values[str(made.operands[1])].type, values[str(node.operands[1])].type, made.result.type
    alike = bias.dtype == of.dtype == node.result.type.dtype and bias.shape == of.shape[-1:]
    return alike and len(matrix.shape) == 2
