"""Graphs written by hand, and the changes that must not matter to a fold."""

from __future__ import annotations

import random
from dataclasses import replace

from autopar.ir.graph import Graph, Node, Operand, Value, map_operand, sorted_attrs
from autopar.ir.types import Attr, TensorType

VECTOR = TensorType("f32", (4,))
MATRIX = TensorType("f32", (4, 4))


class Builder:
    """Appends nodes; each method returns the name of the value it makes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.stored = 0

    def add(
        self, target: str, operands: tuple[Operand, ...], type_: TensorType, attrs: dict[str, Attr]
    ) -> str:
        name = f"v{len(self.nodes)}"
        result = Value(name, type_)
        self.nodes.append(
            Node(results=(result,), target=target, operands=operands, attrs=sorted_attrs(attrs))
        )
        return name

    def input(self, name: str = "x", type_: TensorType = VECTOR) -> str:
        return self.add("input", (), type_, {"name": name})

    def param(self, type_: TensorType = MATRIX, *, target: str = "param", **attrs: Attr) -> str:
        self.stored += 1
        return self.add(target, (), type_, {"fqn": f"p{self.stored}", **attrs})

    def op(self, target: str, *operands: Operand, type_: TensorType = VECTOR, **attrs: Attr) -> str:
        return self.add(target, operands, type_, attrs)

    def linear(self, x: str, weight: str | None = None) -> str:
        return self.op("aten.linear.default", x, weight or self.param())

    def residual(self, x: str) -> str:
        """A layer of five operations and two parameters."""
        hidden = self.op("aten.relu.default", self.linear(x))
        dropped = self.op("aten.dropout.default", self.linear(hidden), p=0.1, train=True)
        return self.op("aten.add.Tensor", x, dropped)

    def graph(self, *outputs: str) -> Graph:
        """Returns ``outputs``, or else the value made last."""
        return Graph(name="main", nodes=tuple(self.nodes), outputs=outputs or (self.nodes[-1].result.name,))


def calls(graph: Graph) -> list[tuple[int, int, int]]:
    """(count, carried values, operations in the block) of each call."""
    found = []
    for node in graph.sources("call"):
        body = [inner for inner in graph.block(str(node.attr("block"))).nodes if inner.operands]
        found.append((int(str(node.attr("count"))), int(str(node.attr("carried"))), len(body)))
    return found


def disguised(graph: Graph, rng: random.Random) -> Graph:
    """The same graph: independent nodes in another order, other names of values and modules.

    Inputs stay first; parameters keep their names, which are data.
    """
    producers = graph.producers()
    waiting = {id(node): len({id(producers[name]) for name in node.uses()}) for node in graph.nodes}
    users: dict[int, list[Node]] = {id(node): [] for node in graph.nodes}
    for node in graph.nodes:
        for producer in {id(producers[name]): None for name in node.uses()}:
            users[producer].append(node)
    ready = [node for node in graph.nodes if node.target != "input" and not waiting[id(node)]]
    order: list[Node] = []
    for node in graph.sources("input"):
        _place(node, order, waiting, users, ready)
    while ready:
        _place(ready.pop(rng.randrange(len(ready))), order, waiting, users, ready)
    numbers = rng.sample(range(10 * len(producers)), len(producers))
    names = {name: f"other{number}" for name, number in zip(producers, numbers, strict=True)}
    nodes = [
        replace(
            node,
            results=tuple(replace(value, name=names[value.name]) for value in node.results),
            operands=tuple(map_operand(operand, names) for operand in node.operands),
            source=f"module{rng.random()}",
        )
        for node in order
    ]
    return replace(graph, nodes=tuple(nodes), outputs=tuple(names[name] for name in graph.outputs))


def _place(
    node: Node, order: list[Node], waiting: dict[int, int], users: dict[int, list[Node]], ready: list[Node]
) -> None:
    order.append(node)
    for user in users[id(node)]:
        waiting[id(user)] -= 1
        if not waiting[id(user)]:
            ready.append(user)
