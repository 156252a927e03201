"""Constraints of the user, on the parameter nodes of the folded graph."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from autopar.ir.constraints import Constraint
from autopar.ir.errors import UsageError
from autopar.ir.graph import Graph

Constrained = Mapping[tuple[str, str], tuple[Constraint, ...]]


def constrained(graph: Graph, constraints: Sequence[Constraint]) -> Constrained:
    """Constraints on each parameter node, by (graph, value).

    Raises UsageError for a pattern that matches no parameter, with the nearest names, or one that
    matches some layers of a repeated block only.
    """
    if not constraints:
        return {}
    places = list(_parameters(graph))
    for constraint in constraints:
        names = [name for _, members in places for name in members]
        if not any(constraint.matches(name) for name in names):
            near = difflib.get_close_matches(constraint.pattern, names, n=3, cutoff=0.0)
            raise UsageError(f"constraint {constraint}: no parameter matches; the nearest are {', '.join(near)}")
    found: dict[tuple[str, str], tuple[Constraint, ...]] = {}
    for key, members in places:
        for constraint in constraints:
            hits = [name for name in members if constraint.matches(name)]
            if hits and len(hits) < len(members):
                missed = next(name for name in members if name not in hits)
                raise UsageError(
                    f"constraint {constraint}: matches {hits[0]} but not {missed}; layers of one repeated block "
                    "can only be constrained together so far"
                )
            if hits:
                found[key] = (*found.get(key, ()), constraint)
    return found


def _parameters(graph: Graph) -> list[tuple[tuple[str, str], list[str]]]:
    """Every parameter node with the names that it stands for."""
    places = [((graph.name, n.result.name), [str(n.attr("fqn"))]) for n in graph.sources("param")]
    for call in graph.nodes:
        params = call.attr("params") if call.target == "call" else None
        if isinstance(params, tuple):
            for node in graph.block(str(call.attr("block"))).sources("param"):
                slot = node.attr("slot")
                assert isinstance(slot, int)
                names = [str(names[slot]) for names in params if isinstance(names, tuple)]
                places.append(((str(call.attr("block")), node.result.name), names))
    return places
