"""Where gradients flow in a lowered program, and where they go to: to parameters, or on to the stage before."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from autopar.ir.calls import carried, returned
from autopar.ir.graph import Graph, Node
from autopar.ir.optable import NO_GRADIENT
from autopar.ir.types import TensorType

# What the gradient of a value goes to; 0: it has none.
NOWHERE, PARAMETERS, RECEIVED = 0, 1, 2

Gradients = Mapping[tuple[str, str], int]


def flat(node: Node) -> tuple[str | None, ...]:
    """Operands with lists written out."""
    found: list[str | None] = []
    for operand in node.operands:
        found += operand if isinstance(operand, tuple) else (operand,)
    return tuple(found)


def gradients(graph: Graph, received: Collection[str]) -> Gradients:
    """By graph and value; ``received``: values of the stage before, of which real ones take a gradient along."""
    found: dict[tuple[str, str], int] = {}
    _visit(graph, graph, received, found)
    return found


def _visit(main: Graph, part: Graph, received: Collection[str], found: dict[tuple[str, str], int]) -> None:
    for node in part.nodes:
        if node.target == "call":
            _call(main, node, found)
            continue
        for value in node.results:
            if part is main or node.target != "input":  # those of a block are settled by its calls
                found[part.name, value.name] = _of(part, node, value.type, received, found)


def _of(part: Graph, node: Node, kind: TensorType, received: Collection[str], found: Gradients) -> int:
    if not kind.has_gradient or node.target in NO_GRADIENT:
        return NOWHERE
    if node.target == "param":
        return PARAMETERS if node.attr("trainable", True) is not False else NOWHERE
    if node.target == "input":
        return RECEIVED if node.results[0].name in received else NOWHERE
    if node.target.startswith("comm.") and not _differentiable(node):
        return NOWHERE
    total = NOWHERE
    for name in node.uses():
        total |= found[part.name, name]
    return total


def _differentiable(node: Node) -> bool:
    keeps_shape = node.target in ("comm.all_reduce", "comm.mask", "comm.identity")
    return (keeps_shape or node.attr("backward", "none") != "none") and node.attr("reduce") != "max"


def _call(main: Graph, node: Node, found: dict[tuple[str, str], int]) -> None:
    """What enters the first call or comes out of one may enter the next."""
    block, handed = main.block(str(node.attr("block"))), carried(node)
    inputs = [source.result.name for source in block.sources("input")]
    entering = [found[main.name, name] for name in flat(node) if name is not None]
    for name, mark in zip(inputs, entering, strict=True):
        found[block.name, name] = found.get((block.name, name), NOWHERE) | mark
    while True:
        _visit(main, block, (), found)
        outputs = [found[block.name, name] for name in block.outputs]
        again = {name: found[block.name, name] | mark for name, mark in zip(inputs[:handed], outputs, strict=False)}
        if all(found[block.name, name] == mark for name, mark in again.items()):
            break
        found.update({(block.name, name): mark for name, mark in again.items()})
    found.update({(main.name, value.name): found[block.name, name] for _, value, name in returned(node, block)})
