"""What several stages of a pipeline compute for themselves: values that depend on no parameter, or on these alone.

They go from no stage to another (``stages.py``): each that needs one works it out, every microbatch or once before the
first. Their costs are those of the tables that their nodes and edges have in the root of a problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from autopar.ir.graph import Graph, Node
from autopar.passes.build import Encoded, Model
from autopar.passes.early import origin
from autopar.passes.stages import belongs, dependence


class Repeated(NamedTuple):
    """A value by the first result of its node; ``once``: of the whole batch, before the first microbatch."""

    value: str
    once: bool


def repeated_ns(model: Model, encoded: Encoded, root: tuple[int, ...]) -> tuple[dict[Repeated, int], AbstractSet[int]]:
    """Nanoseconds of a step that each such value takes with what leads from it, and the tables that say so."""
    found: dict[Repeated, int] = {}
    variables, tables = encoded.variables[model.graph.name], set()
    loose = anywhere(model.graph)
    for number, table in enumerate(encoded.problem.root.tables):
        name = variables[table.variables[0]].name
        if name in loose and variables[table.variables[0]].kind in ("node", "source"):
            ns = int(table.sync_ns[tuple(root[variable] for variable in table.variables)])
            key = Repeated(name, table.once)
            found[key] = found.get(key, 0) + ns
            tables.add(number)
    return found, tables


def anywhere(graph: Graph) -> AbstractSet[str]:
    """First results of the nodes that belong to no stage, but for parameters: these stand where they are used first."""
    depends = dependence(graph.nodes)
    loose = {node.results[0].name for node in graph.nodes if not belongs(node, depends)}
    return loose - {node.result.name for node in graph.sources("param")}


def reached(graph: Graph, before: Graph | None = None) -> dict[str, frozenset[Repeated]]:
    """What each value of a main graph, or of a part of it, needs of what is repeated; by name. ``before``: its
    prologue."""
    known: dict[str, frozenset[Repeated]] = {}
    if before is not None:
        for node in before.nodes:
            _reach(node, known, Repeated(origin(node.results[0].name), True))
        known = {name: known[name] for name in before.outputs}
    depends = dependence(graph.nodes)
    for node in graph.nodes:
        if not belongs(node, depends) and node.results[0].name not in known:
            _reach(node, known, Repeated(node.results[0].name, False))
    return known


def _reach(node: Node, known: dict[str, frozenset[Repeated]], own: Repeated) -> None:
    found = frozenset([own]).union(*(known.get(name, ()) for name in node.uses()))
    known.update((value.name, found) for value in node.results)


def needs_of(node: Node, known: Mapping[str, frozenset[Repeated]]) -> frozenset[Repeated]:
    """What a node that stands in one stage needs."""
    return frozenset[Repeated]().union(*(known.get(name, ()) for name in node.uses()))
