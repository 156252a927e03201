"""Where in each dim an axis may stand: batch, sequence and inner factors, followed through the graph.

A *mark* says that the stretch ``[start, start · size)`` of a dim's mixed radix is a batch, is a sequence, holds
classes (a vocabulary: it may be cut into uneven parts) or experts, or begins a factor that stands inside a whole one
(``cut``: the ``n`` of a fused ``(3 n)``). Marks
start at the inputs, at lookups, losses and experts, and at compound dims and travel along the factors of every rule,
both ways, through blocks too, until nothing changes. So a flattened (batch, sequence) keeps both, and a weight
learns that its output is three projections side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from autopar.ir.calls import carried, returned
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.optable import node_rule
from autopar.ir.rules import Dim, NodeRule
from autopar.passes.unbound import unbound

# (label, start, size): label is batch, sequence, class, expert or cut.
Mark: TypeAlias = tuple[str, int, int]
Rules: TypeAlias = Mapping[tuple[str, str], NodeRule]

EXPERT_AXIS = "ep"
BATCH_AXES = ("dp", EXPERT_AXIS, "mb")
# What axes whose names bind them may split; others take anything, but for those that never take the batch.
ROLES = {"dp": ("batch",), "mb": ("batch",), "cp": ("sequence",), EXPERT_AXIS: ("batch", "expert")}
NEVER_BATCH_AXES = ("tp", "cp")


def node_key(graph: Graph, node: Node) -> tuple[str, str]:
    """A node's identity: its graph and its first result."""
    return graph.name, node.results[0].name


def flat_operands(node: Node) -> tuple[str | None, ...]:
    """Operands with lists flattened, as rules number them."""
    return node.flat


def all_graphs(graph: Graph) -> tuple[Graph, ...]:
    return (*graph.blocks, graph)


def instantiate_rules(graph: Graph) -> dict[tuple[str, str], NodeRule]:
    """The rule of every operation, for the shapes it has."""
    rules = {}
    for part in all_graphs(graph):
        types = {name: value.type for name, value in part.values().items()}
        for node in part.nodes:
            if node.target not in (*SOURCES, "call"):
                shapes = [None if name is None else types[name].shape for name in flat_operands(node)]
                rules[node_key(part, node)] = node_rule(
                    node, shapes, [value.type.shape for value in node.results]
                )
    return rules


@dataclass(frozen=True, kw_only=True)
class Positions:
    """``marks[graph, value][dim]`` and, for each node, ``factors[graph, node][factor]``: sorted marks.

    ``uneven``: factors of each node that an axis may cut into padded parts. ``inner``: whether an axis is offered a
    minor factor where it may have the major one in front of it: a larger axis may have that one alone. ``unbound``:
    nodes that no axis's name binds.
    """

    marks: Mapping[tuple[str, str], tuple[tuple[Mark, ...], ...]]
    factors: Mapping[tuple[str, str], Mapping[str, tuple[Mark, ...]]]
    uneven: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    inner: bool = False
    unbound: frozenset[tuple[str, str]] = frozenset()

    def has(self, graph: str, value: str, label: str) -> bool:
        return any(mark[0] == label for dim in self.marks[graph, value] for mark in dim)

    def offered(
        self, key: tuple[str, str], factor: str, size: int, axis: str, axis_size: int
    ) -> tuple[int, ...]:
        """Stride positions inside ``factor`` of one node that ``axis`` may own, in order."""
        marks = self.factors[key].get(factor, ())
        batch = [(start, start * extent) for label, start, extent in marks if label == "batch"]
        starts = {1} | {start for _, start, _ in marks} | {end for _, end in batch}
        found = tuple(p for p in sorted(starts) if _allowed(p, size, marks, batch, axis, axis_size))
        if not found and factor in self.uneven.get(key, ()) and _padded(size, axis, axis_size):
            return (1,)
        return found


def _padded(size: int, axis: str, axis_size: int) -> bool:
    """Whether ``size`` classes leave something for every device of an axis that may take them."""
    return axis not in ROLES and size % axis_size != 0 and -(-size // axis_size) * (axis_size - 1) < size


def _allowed(
    at: int, size: int, marks: Iterable[Mark], batch: list[tuple[int, int]], axis: str, axis_size: int
) -> bool:
    if axis_size == 1 or size % (at * axis_size):
        return False
    roles = ROLES.get(axis)
    if roles and not any(m in roles and start == at and extent % axis_size == 0 for m, start, extent in marks):
        return False
    return axis not in NEVER_BATCH_AXES or all(at * axis_size <= lo or hi <= at for lo, hi in batch)


def positions(graph: Graph, rules: Rules, inputs: Mapping[str, tuple[int | None, int | None]]) -> Positions:
    """Follow marks to a fixpoint.

    ``inputs``: for each input's name its (batch dim, sequence dim), None where it has none.
    """
    state = _State(graph, rules)
    for node in graph.sources("input"):
        batch, sequence = inputs[str(node.attr("name"))]
        for label, dim in (("batch", batch), ("sequence", sequence)):
            if dim is not None and node.result.type.shape[dim] > 1:
                state.marks[graph.name, node.result.name][dim].add((label, 1, node.result.type.shape[dim]))
    while state.sweep():
        pass
    return Positions(
        marks={key: tuple(tuple(sorted(marks)) for marks in dims) for key, dims in state.marks.items()},
        factors={
            key: {f: tuple(sorted(m)) for f, m in found.items()} for key, found in state.factors.items()
        },
        uneven={
            key: frozenset(f for f in rule.uneven if ("class", 1, rule.sizes[f]) in state.factors[key][f])
            for key, rule in rules.items() if rule.uneven
        },
        unbound=unbound(graph, {
            name: any(mark[0] == "batch" for marks in dims for mark in marks)
            for (part, name), dims in state.marks.items() if part == graph.name
        }),
    )  # fmt: skip


class _State:
    """Marks found so far; ``sweep`` visits every node once and says whether anything was new."""

    def __init__(self, graph: Graph, rules: Rules) -> None:
        self.graph, self.rules = graph, rules
        self.marks: dict[tuple[str, str], list[set[Mark]]] = {}
        self.factors: dict[tuple[str, str], dict[str, set[Mark]]] = {}
        for part in all_graphs(graph):
            for name, value in part.values().items():
                self.marks[part.name, name] = [set() for _ in value.type.shape]
        for key, rule in rules.items():
            self.factors[key] = {factor: set() for factor in rule.sizes}
            for factor, size in _inner_factors(rule):
                self.factors[key][factor].add(("cut", 1, size))
            for factor in rule.uneven if rule.classes else ():
                self.factors[key][factor].add(("class", 1, rule.sizes[factor]))
            if rule.exchange is not None:
                experts = rule.exchange[1]
                self.factors[key][experts].add(("expert", 1, rule.sizes[experts]))

    def sweep(self) -> bool:
        changed = False
        for part in all_graphs(self.graph):
            for nodes in (part.nodes, reversed(part.nodes)):
                for node in nodes:
                    if node.target == "call":
                        changed |= self._call(part, node)
                    elif node.target not in SOURCES:
                        changed |= self._node(part, node)
        return changed

    def _node(self, part: Graph, node: Node) -> bool:
        key = node_key(part, node)
        rule, found = self.rules[key], self.factors[key]
        before = sum(map(len, found.values()))
        places = list(self._places(part, node, rule))
        for marks, dim in places:
            for factor in dim:
                at, size = rule.start(dim, factor), rule.sizes[factor]
                found[factor].update(m for mark in marks if (m := _inside(mark, at, size)) is not None)
        grown = sum(map(len, found.values())) != before
        for marks, dim in places:
            count = len(marks)
            for factor in dim:
                at = rule.start(dim, factor)
                # a factor that begins its dim needs no cut: position 1 is always offered
                marks.update((lb, at * lo, n) for lb, lo, n in found[factor] if lb != "cut" or at * lo > 1)
            grown |= len(marks) != count
        return grown

    def _places(self, part: Graph, node: Node, rule: NodeRule) -> Iterator[tuple[set[Mark], Dim]]:
        names = (*flat_operands(node), *(value.name for value in node.results))
        for name, dims in zip(names, (*rule.operands, *rule.results), strict=True):
            if name is not None:
                yield from zip(self.marks[part.name, name], dims, strict=True)

    def _call(self, part: Graph, node: Node) -> bool:
        block = part.block(str(node.attr("block")))
        inputs = [value.results[0].name for value in block.sources("input")]
        grown = False
        rows = [
            [(part.name, outer), (block.name, inner)]
            for outer, inner in zip(flat_operands(node), inputs, strict=True)
        ]
        for index in range(carried(node)):
            rows[index] += [(part.name, node.results[index].name), (block.name, block.outputs[index])]
        for _, value, name in list(returned(node, block))[carried(node) :]:
            rows.append([(part.name, value.name), (block.name, name)])
        for row in rows:
            for dims in zip(*(self.marks[key] for key in row), strict=True):  # type: ignore[index]
                union = set().union(*dims)
                for marks in dims:
                    grown |= len(marks) != len(union)
                    marks |= union
        return grown


def _inner_factors(rule: NodeRule) -> Iterator[tuple[str, int]]:
    """Factors that may be split although they do not begin their dim: all before them are whole."""
    for dims in (*rule.operands, *rule.results):
        for dim in dims:
            for before, factor in itertools.pairwise(dim):
                if before in rule.whole and factor not in rule.whole:
                    yield factor, rule.sizes[factor]


def _inside(mark: Mark, at: int, size: int) -> Mark | None:
    """The part of a dim's mark that lies in the factor at stride ``at``, relative to the factor."""
    label, start, extent = mark
    low, high = max(start, at), min(start * extent, at * size)
    if low >= high or low % at or high % low or (at * size) % high:
        return None
    return label, low // at, high // low
