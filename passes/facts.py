"""What the passes know of each value of a folded graph: type, gradient, dependence on parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.calls import carried, returned
from autopar.ir.graph import Graph, Node
from autopar.ir.optable import NO_GRADIENT
from autopar.ir.types import TensorType
from autopar.passes.positions import flat_operands


@dataclass(frozen=True, slots=True)
class Fact:
    """``grad``: a gradient flows into it. ``pure``: a function of the inputs and buffers alone; or a ``parameter``."""

    type: TensorType
    grad: bool
    pure: bool
    parameter: bool = False


def facts(graph: Graph) -> Mapping[tuple[str, str], Fact]:
    """Facts of every value, by (graph name, value name).

    A carried block input has a gradient if the first call's operand has one or the block's own
    parameters give its output one.
    """
    found: dict[tuple[str, str], Fact] = {}
    _visit(graph, graph, found)
    return found


def _visit(root: Graph, part: Graph, found: dict[tuple[str, str], Fact]) -> None:
    for node in part.nodes:
        if node.target == "call":
            _visit_call(root, part, node, found)
            continue
        for value in node.results:
            key = (part.name, value.name)
            if key in found and node.target == "input":  # a block's input: settled by its call
                continue
            found[key] = _fact(part, node, value.type, found)


def _fact(part: Graph, node: Node, kind: TensorType, found: Mapping[tuple[str, str], Fact]) -> Fact:
    if node.target == "param":
        trainable = node.attr("trainable", True) is not False
        return Fact(kind, trainable and kind.has_gradient, pure=False, parameter=True)
    uses = [found[part.name, name] for name in node.uses()]
    grad = kind.has_gradient and node.target not in NO_GRADIENT and any(use.grad for use in uses)
    return Fact(kind, grad, all(use.pure for use in uses))


def _visit_call(root: Graph, part: Graph, node: Node, found: dict[tuple[str, str], Fact]) -> None:
    block = root.block(str(node.attr("block")))
    handed = carried(node)
    inputs = [value.result for value in block.sources("input")]
    outer = [found[part.name, name] for name in flat_operands(node) if name is not None]
    for value, fact in zip(inputs, outer, strict=True):
        found[block.name, value.name] = Fact(value.type, fact.grad, fact.pure)
    _visit(root, block, found)
    outputs = [found[block.name, name] for name in block.outputs]
    again = [
        Fact(v.type, found[block.name, v.name].grad or out.grad, found[block.name, v.name].pure and out.pure)
        for v, out in zip(inputs[:handed], outputs[:handed], strict=True)
    ]
    if any(found[block.name, v.name] != fact for v, fact in zip(inputs, again, strict=False)):
        found.update({(block.name, v.name): fact for v, fact in zip(inputs, again, strict=False)})
        _visit(root, block, found)
    for _, value, name in returned(node, block):
        found[part.name, value.name] = found[block.name, name]
