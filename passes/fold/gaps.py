"""What a trace leaves out of a long chain of equal calls, put back where the chain is folded.

A trace of a hundred equal layers need hold only the first and the last few: of the others it is known that they
compute the same, with other parameters. Folding what is there finds the block, and the names of what is not
there go into the call between those of their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from autopar.ir.graph import Graph, Node

Columns: TypeAlias = "Mapping[str, tuple[tuple[str, ...], str]]"
"""By the name of a parameter before a gap, those that are missing and the one behind."""


class UnfilledError(Exception):
    """The chain around a gap was not folded into one call: only the whole graph can tell what becomes of it."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Instances of a chain that a graph lacks, between one that it has and the next.

    Each is given by the names of its parameters and buffers, all in one order.
    """

    before: tuple[str, ...]
    missing: tuple[tuple[str, ...], ...]
    after: tuple[str, ...]

    def columns(self) -> Columns:
        """Without parameters that all instances share."""
        rows = zip(self.before, zip(*self.missing, strict=True), self.after, strict=True)
        return {before: (missing, after) for before, missing, after in rows if before != after}


def fill(graph: Graph, gaps: Iterable[Gap]) -> tuple[Graph, int]:
    """The folded graph with the instances that its gaps left out, and how many nodes these have.

    Requires: ``graph`` is the fold of a graph with ``gaps``. Ensures: it is the fold of that graph without gaps.
    Raises: UnfilledError.
    """
    nodes, added = list(graph.nodes), 0
    standing = {name for node in nodes for name in _stored(node)}
    for gap in gaps:
        columns = gap.columns()
        for missing, _ in columns.values():
            if len({*missing} - standing) < len(missing):  # a layer is called twice
                raise UnfilledError
            standing.update(missing)
        beside = {*columns, *(after for _, after in columns.values())}
        places = [at for at, node in enumerate(nodes) if not beside.isdisjoint(_stored(node))]
        if len(places) != 1 or nodes[places[0]].target != "call":
            raise UnfilledError
        call = nodes[places[0]]
        nodes[places[0]] = _filled(call, columns, len(gap.missing))
        block = graph.block(str(call.attr("block")))
        added += len(gap.missing) * (len(block.nodes) - len(block.sources("input")))
    return replace(graph, nodes=tuple(nodes)), added


def _stored(node: Node) -> Iterable[str]:
    """Names of parameters and buffers that the node stands for or hands on."""
    if node.target == "call":
        return (name for row in _rows(node) for name in row)
    return (str(node.attr("fqn")),)


def _rows(call: Node) -> tuple[tuple[str, ...], ...]:
    rows = call.attr("params")
    assert isinstance(rows, tuple)
    return rows  # type: ignore[return-value]


def _filled(call: Node, columns: Columns, missing: int) -> Node:
    """Each slot has the names of the missing instances where the names around the gap meet."""
    made = []
    for column in zip(*_rows(call), strict=True):
        at = next((at for at, name in enumerate(column) if name in columns), None)
        if at is None:
            raise UnfilledError
        between, after = columns[column[at]]
        if column[at + 1 : at + 2] != (after,):
            raise UnfilledError
        made.append((*column[: at + 1], *between, *column[at + 1 :]))
    count = call.attr("count")
    assert isinstance(count, int)
    return call.with_attrs(count=count + missing, params=tuple(zip(*made, strict=True)))
