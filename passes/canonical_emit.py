"""Write a new graph, node by node: types, and equal views and parameter-free nodes only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from autopar.ir.graph import SOURCES, Graph, Node, Operand, Value, map_operand, sorted_attrs
from autopar.ir.types import Attr, TensorType

Attrs: TypeAlias = "dict[str, Attr]"
Operands: TypeAlias = "tuple[Operand, ...]"
Types: TypeAlias = "tuple[TensorType, ...]"

DETACH = "autopar.detach"
_VIEWS = ("aten.reshape.default", "aten.permute.default", "aten.expand.default")
_RANDOM = (
    "rand",
    "dropout",
    "bernoulli",
    "normal",
    "multinomial",
    "uniform",
    "poisson",
    "exponential",
    "rrelu",
)


class Emitter:
    """The graph under construction. Every method returns names of values that stand in it.

    ``rewrite`` is asked first for every operation: it may emit something equal instead.
    ``source`` is put on every node emitted from now on.
    """

    def __init__(
        self, rewrite: Callable[[Emitter, str, Operands, Attrs, Types], tuple[str, ...] | None]
    ) -> None:
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.source = ""
        self._rewrite = rewrite
        self._producers: dict[str, Node] = {}
        self._learns: set[str] = set()  # values that depend on a parameter
        self._equal: dict[tuple[object, ...], tuple[str, ...]] = {}

    def emit(self, target: str, operands: Operands, attrs: Attrs, types: Types) -> tuple[str, ...]:
        """Names of the results of the operation, or of an equal one."""
        rewritten = self._rewrite(self, target, operands, attrs, types)
        return self.raw(target, operands, attrs, types) if rewritten is None else rewritten

    def op(self, target: str, *operands: Operand, type: TensorType, **attrs: Attr) -> str:
        """An operation with one result."""
        return self.emit(target, trimmed(operands), attrs, (type,))[0]

    def raw(self, target: str, operands: Operands, attrs: Attrs, types: Types) -> tuple[str, ...]:
        """The operation as it is; an equal view or parameter-free one is used again."""
        ordered = sorted_attrs(attrs)
        learns = self._learning(target, operands)
        key = (target, operands, ordered, types)
        shared = target in _VIEWS or (not learns and not any(word in target for word in _RANDOM))
        if shared and key in self._equal:
            return self._equal[key]
        start = len(self.types)
        results = tuple(Value(f"t{start + i}", type_) for i, type_ in enumerate(types))
        node = Node(results=results, target=target, operands=operands, attrs=ordered, source=self.source)
        names = tuple(value.name for value in results)
        self.nodes.append(node)
        for value in results:
            self.types[value.name] = value.type
            self._producers[value.name] = node
        if learns:
            self._learns.update(names)
        if shared:
            self._equal[key] = names
        return names

    def producer(self, name: Operand) -> Node | None:
        return self._producers.get(name) if isinstance(name, str) else None

    def made_by(self, name: Operand, target: str) -> Node | None:
        """The node that made ``name``, if it is a ``target``."""
        node = self.producer(name)
        return node if node is not None and node.target == target else None

    def learns(self, name: str) -> bool:
        """Whether the value depends on a parameter through something that has a gradient."""
        return name in self._learns

    def _learning(self, target: str, operands: Operands) -> bool:
        if target == "param":
            return True
        return any(
            name in self._learns
            for operand in operands
            for name in (operand if isinstance(operand, tuple) else (operand,))
        )


def trimmed(operands: Iterable[Operand]) -> Operands:
    """Without the trailing absent ones."""
    kept = list(operands)
    while kept and kept[-1] is None:
        kept.pop()
    return tuple(kept)


def finished(graph: Graph, nodes: list[Node], outputs: tuple[str, ...]) -> Graph:
    """``graph`` with ``nodes`` instead of its own: dead ones left out, values named by what they are.

    Ensures: inputs stay even if unused; names depend on the nodes and their order alone.
    """
    needed = set(outputs)
    live: list[Node] = []
    for node in reversed(nodes):
        if node.target == "input" or any(value.name in needed for value in node.results):
            needed.update(node.uses())
            live.append(node)
    names: dict[str, str] = {}
    taken: dict[str, int] = {}
    named: list[Node] = []
    for node in reversed(live):
        results = tuple(Value(_name(node, taken), value.type, value.layout) for value in node.results)
        operands = tuple(map_operand(operand, names) for operand in node.operands)
        names.update((old.name, new.name) for old, new in zip(node.results, results, strict=True))
        named.append(
            Node(results=results, target=node.target, operands=operands, attrs=node.attrs, source=node.source)
        )
    return Graph(
        name=graph.name, nodes=tuple(named), outputs=tuple(names[name] for name in outputs), mesh=graph.mesh
    )


def _name(node: Node, taken: dict[str, int]) -> str:
    """The name of a parameter or input, else of the operation, with a number if it is taken."""
    if node.target in SOURCES:
        own = node.attr("name") if node.target == "input" else node.attr("fqn")
        base = "".join(c if c.isalnum() else "_" for c in str(own))
    else:
        base = node.target.split(".")[1].strip("_")
    while True:
        count = taken.get(base, -1) + 1
        taken[base] = count
        if not count:
            return base
        name = f"{base}_{count}"
        if name not in taken:
            taken[name] = 0
            return name
