"""Constraints of the user, on the parameter nodes of the folded graph."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autopar.ir.calls import pieces
from autopar.ir.constraints import Constraint
from autopar.ir.errors import InfeasibleError, UsageError
from autopar.ir.graph import Graph, Node
from autopar.passes.patterns import starred

Constrained = Mapping[tuple[str, str], tuple[Constraint, ...]]
NEAREST = 3


def settled(graph: Graph, constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The constraints with every ``dim`` counted from the first.

    Raises UsageError for a pattern that no parameter matches, with the nearest names, and for a dim that one does not
    have; InfeasibleError naming two constraints that contradict each other.
    """
    places = _parameters(graph)
    found: list[Constraint] = []
    for constraint in constraints:
        hits = [(name, rank) for name, rank in places if constraint.matches(name)]
        if not hits:
            near = ", ".join(_nearest(constraint.pattern, [name for name, _ in places]))
            raise UsageError(f"constraint {constraint}: no parameter or module matches; the nearest are {near}")
        if constraint.dim is None:
            found.append(constraint)
            continue
        for name, rank in hits:
            if not -rank <= constraint.dim < rank:
                raise UsageError(f"constraint {constraint}: {name} has {rank} dims, numbered from 0")
        ranks = {rank for _, rank in hits}
        if constraint.dim < 0 and len(ranks) > 1:
            raise UsageError(
                f"constraint {constraint}: counted from the last, dim {constraint.dim} is another one for each "
                f"number of dims, of which there are {', '.join(map(str, sorted(ranks)))}; count from the first"
            )
        found.append(replace(constraint, dim=constraint.dim % hits[0][1]))
    for name, _ in places:
        for one, other in itertools.combinations([c for c in found if c.matches(name)], 2):
            if one.contradicts(other):
                raise InfeasibleError(
                    f"constraints {one} and {other} contradict each other: both are about {name}; drop one",
                    details={"conflict": [str(one), str(other)]},
                )
    _in_order(graph, found)
    return tuple(found)


def _in_order(graph: Graph, constraints: Sequence[Constraint]) -> None:
    """Repeated layers run one after the other, and so do stages.

    Raises InfeasibleError naming two constraints that would have a later layer in an earlier stage.
    """
    staged = [constraint for constraint in constraints if constraint.index is not None]
    for call in graph.nodes if len(staged) > 1 else ():
        latest: tuple[int, str, Constraint] | None = None  # stage so far, and who says so
        for row in _rows(call):
            said = [(c.index or 0, name, c) for name in row for c in staged if c.matches(name)]
            for index, name, constraint in said:
                if latest is not None and index < latest[0]:
                    raise InfeasibleError(
                        f"constraints {latest[2]} and {constraint} contradict each other: {latest[1]} is run before "
                        f"{name}, and cannot stand in a later stage; drop one",
                        details={"conflict": [str(latest[2]), str(constraint)]},
                    )
            latest = max([*said, *([latest] if latest else [])], key=lambda each: each[0], default=None)


def _nearest(pattern: str, names: Sequence[str]) -> list[str]:
    """Of all parameters and modules, each that layers repeat told once: as a pattern if a pattern was asked for."""
    parts = [name.split(".") for name in names]
    known = dict.fromkeys(".".join(each[:end]) for each in parts for end in range(len(each), 0, -1))
    if "*" in pattern:
        known = dict.fromkeys(starred(name) for name in known)
    ranked = difflib.get_close_matches(pattern, known, n=len(known), cutoff=0.0)
    found: dict[str, str] = {}
    for name in ranked:
        found.setdefault(starred(name), name)
    return list(found.values())[:NEAREST]


def told_apart(graph: Graph, constraints: Sequence[Constraint]) -> Graph:
    """Calls of a block of which some layers are constrained otherwise than others, each run of alike ones apart.

    Requires: a folded graph, of which no two calls share a block. Where layers stand in a pipeline makes no difference.
    """
    splitting = [constraint for constraint in constraints if constraint.kind != "stage"]
    nodes: list[Node] = []
    blocks: list[Graph] = []
    for node in graph.nodes:
        made = [node] if node.target != "call" else list(_runs(node, splitting))
        nodes += made
        if node.target == "call":
            block = graph.block(str(node.attr("block")))
            blocks += [replace(block, name=str(call.attr("block"))) for call in made]
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=tuple(nodes), blocks=tuple(blocks))


def _runs(call: Node, constraints: Sequence[Constraint]) -> Iterator[Node]:
    """One call, of a block of its own, for each run of layers that are constrained alike."""
    params = call.attr("params")
    assert isinstance(params, tuple)
    runs = [len(list(rows)) for _, rows in itertools.groupby(params, lambda row: _kind(row, constraints))]
    for index, run in enumerate(pieces(call, runs, ".part")):
        yield run.with_attrs(block=f"{call.attr('block')}{f'_{index}' if index else ''}")


def _kind(row: object, constraints: Sequence[Constraint]) -> tuple[tuple[str, ...], ...]:
    """What is asked of each parameter of a call."""
    assert isinstance(row, tuple)
    return tuple(tuple(str(c) for c in constraints if c.matches(str(name))) for name in row)


def constrained(graph: Graph, constraints: Sequence[Constraint]) -> Constrained:
    """Constraints on each parameter node, by (graph, value).

    Requires: ``settled`` ones, and a graph that is ``told_apart`` by them.
    """
    if not constraints:
        return {}
    found = {}
    for key, name in _places(graph):
        hits = tuple(constraint for constraint in constraints if constraint.matches(name))
        if hits:
            found[key] = hits
    return found


def _places(graph: Graph) -> Iterator[tuple[tuple[str, str], str]]:
    """Every parameter node with a name that it stands for."""
    for node in graph.sources("param"):
        yield (graph.name, node.result.name), str(node.attr("fqn"))
    for call, slot, node in _slots(graph):
        params = call.attr("params")
        assert isinstance(params, tuple) and isinstance(params[0], tuple)
        yield (str(call.attr("block")), node.result.name), str(params[0][slot])


def _parameters(graph: Graph) -> list[tuple[str, int]]:
    """Every parameter with its number of dims."""
    found = [(str(node.attr("fqn")), len(node.result.type.shape)) for node in graph.sources("param")]
    for call, slot, node in _slots(graph):
        found += [(row[slot], len(node.result.type.shape)) for row in _rows(call)]
    return found


def _rows(call: Node) -> list[tuple[str, ...]]:
    """Names of the parameters of each layer, in the order in which a call runs them; none of other nodes."""
    params = call.attr("params") if call.target == "call" else ()
    assert isinstance(params, tuple)
    return [tuple(map(str, row)) for row in params if isinstance(row, tuple)]


def _slots(graph: Graph) -> Iterator[tuple[Node, int, Node]]:
    """(call, slot, parameter node of its block)."""
    for call in graph.nodes:
        if call.target == "call":
            for node in graph.block(str(call.attr("block"))).sources("param"):
                slot = node.attr("slot")
                assert isinstance(slot, int)
                yield call, slot, node
