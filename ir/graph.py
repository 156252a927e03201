"""Graph, Node, Value: frozen data in static single assignment.

A graph is a tuple of nodes in topological order; every value is named once. Structural targets are
``input`` {name}, ``param`` {fqn} and ``buffer`` {fqn} (inside a block: {slot}), ``constant`` {fqn} and
``call`` {block, count, carried, params}; ``comm.*`` are collectives of lowered programs; the rest are
operations (``aten.*`` as torch names them, ``autopar.*`` our own).

``call`` runs a block ``count`` times in a row: its first ``carried`` operands enter the first call and
leave as the results of the last, the other operands are the same for every call, and ``params`` holds
for each call the names of the parameters and buffers that fill the block's slots. What else the block returns
is collected of every call (``calls.py``).

``autopar.assign`` (value, (buffer, …), (new, …)) gives the value as it is; besides, the buffers hold the new
values once the graph has run. Until then everything that reads them sees the old ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.types import Attr, TensorType

# One tensor argument of an operation: a value, an absent optional, or a list of them.
Operand: TypeAlias = "str | None | tuple[str | None, ...]"

STRUCTURAL = ("input", "param", "buffer", "constant", "call")
SOURCES = ("input", "param", "buffer", "constant")
ASSIGN = "autopar.assign"


@dataclass(frozen=True, slots=True)
class Value:
    """A named result. ``layout`` is None before lowering."""

    name: str
    type: TensorType
    layout: Layout | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation.

    ``operands``: tensor arguments in the order of the operation's schema, trailing absent ones left out.
    ``attrs``: all other arguments by schema name, sorted; those at their default are left out.
    ``source``: where in the user's model it came from (module path); no pass may decide by it.
    """

    results: tuple[Value, ...]
    target: str
    operands: tuple[Operand, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()
    source: str = field(default="", compare=False)

    def attr(self, name: str, default: Attr = None) -> Attr:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def with_attrs(self, **changes: Attr) -> Node:
        merged = {**dict(self.attrs), **changes}
        return replace(self, attrs=sorted_attrs(merged))

    @property
    def result(self) -> Value:
        """The only result; raises ValueError if there are several."""
        (value,) = self.results
        return value

    @cached_property
    def flat(self) -> tuple[str | None, ...]:
        """Operands with lists flattened, as rules number them."""
        out: list[str | None] = []
        for operand in self.operands:
            out += operand if isinstance(operand, tuple) else (operand,)
        return tuple(out)

    def uses(self) -> Iterator[str]:
        """Names of the operand values, in order, with repeats."""
        for operand in self.operands:
            if isinstance(operand, tuple):
                yield from (name for name in operand if name is not None)
            elif operand is not None:
                yield operand


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes in topological order and the names of the values returned.

    ``blocks`` are the graphs that ``call`` nodes run; ``mesh`` is set on lowered graphs.
    """

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    blocks: tuple[Graph, ...] = ()
    mesh: Mesh | None = None

    def values(self) -> dict[str, Value]:
        return {value.name: value for node in self.nodes for value in node.results}

    def producers(self) -> dict[str, Node]:
        return {value.name: node for node in self.nodes for value in node.results}

    def consumers(self) -> dict[str, list[Node]]:
        """Nodes that use each value, in order; a node that uses it twice stands once."""
        found: dict[str, list[Node]] = {value: [] for value in self.values()}
        for node in self.nodes:
            for name in dict.fromkeys(node.uses()):
                found[name].append(node)
        return found

    def block(self, name: str) -> Graph:
        return next(block for block in self.blocks if block.name == name)

    def sources(self, target: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.target == target)


def assigned(node: Node) -> tuple[tuple[str, str], ...]:
    """(buffer, new value) for each buffer that an ``autopar.assign`` writes."""
    _, buffers, news = node.operands
    assert isinstance(buffers, tuple) and isinstance(news, tuple)
    return tuple((str(buffer), str(new)) for buffer, new in zip(buffers, news, strict=True))


def sorted_attrs(attrs: dict[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    return tuple(sorted(attrs.items()))


def map_operand(operand: Operand, names: dict[str, str]) -> Operand:
    """The operand with its values renamed; names that are absent from ``names`` stay."""
    if isinstance(operand, tuple):
        return tuple(None if name is None else names.get(name, name) for name in operand)
    return None if operand is None else names.get(operand, operand)


def renamed(node: Node, names: dict[str, str]) -> Node:
    """The node with operand values renamed."""
    return replace(node, operands=tuple(map_operand(operand, names) for operand in node.operands))
