"""Gradients of parameters that the program itself adds up are added up once a step, not once a microbatch.

Where every use of a parameter returns a part of its gradient on an axis (``R → R*``), the sum over the axis and the
sum over microbatches may change places: a norm's weight under sequence sharding, for one. Such conversions are
marked ``owner="step"``: the runtime leaves them out of a step's backward and does all of them together at its end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from autopar.ir.graph import Graph, Node
from autopar.ir.layout import RSTAR, Layout, R
from autopar.ir.program import MICROBATCH_AXIS, Program

# A parameter's source node: the graph that it stands in and the value that it makes.
Source = tuple[str, str]
Axes = frozenset[str]


@functools.lru_cache(maxsize=1 << 14)
def step_axes(
    storage: Layout, needs: tuple[Layout, ...], owned: tuple[str, ...], *, trainable: bool
) -> tuple[str, ...]:
    """Axes whose sum waits for the end of the step: not the runtime's, whole in storage, each use a part."""
    return tuple(
        axis for axis in storage.mesh.names
        if trainable and axis not in owned and axis != MICROBATCH_AXIS and storage.mesh.size(axis) > 1
        and storage[axis] == R and all(need[axis] == RSTAR for need in needs)
    )  # fmt: skip


def once_a_step(program: Program) -> Program:
    """Mark the conversions that may wait. Requires: a lowered program.

    Ensures: of a parameter's conversions on one axis all are marked or none, also where several graphs use it.
    """
    parts = (program.graph, *program.graph.blocks)
    found = {source: steps for part in parts for source, steps in _waiting(part)}
    filled = {source: names for part in parts for source, names in _names(program.graph, part)}
    legal: dict[str, Axes] = {p.fqn: frozenset(p.layout.mesh.names) for p in program.parameters if p.trainable}
    axes: dict[Source, Axes] = {}
    before: dict[str, Axes] = {}
    while before != legal:  # a source may stand for several parameters, a parameter behind several sources
        before = dict(legal)
        for source, names in filled.items():
            axes[source] = frozenset(found.get(source, {})).intersection(*(legal.get(n, Axes()) for n in names))
            legal.update({name: axes[source] & legal[name] for name in names if name in legal})
    graphs = [_marked(part, found, axes) for part in parts]
    used = {name for names in filled.values() for name in names}
    parameters = tuple(
        replace(p, step_axes=tuple(a for a in p.layout.mesh.names if a in legal[p.fqn]))
        if p.fqn in used and legal.get(p.fqn) else p
        for p in program.parameters
    )
    return replace(program, graph=replace(graphs[0], blocks=tuple(graphs[1:])), parameters=parameters)


def _waiting(part: Graph) -> Iterator[tuple[Source, Mapping[str, list[str]]]]:
    """Each parameter's axes on which all its uses stand behind one sum, and the results of these sums."""
    consumers = part.consumers()
    for node in part.sources("param"):
        sums: dict[str, list[str]] = {}
        behind: Axes | None = None
        stack: list[tuple[str, Axes]] = [(node.result.name, Axes())]
        while stack:
            at, summed = stack.pop()
            for user in consumers[at]:
                if not user.target.startswith("comm."):
                    behind = summed if behind is None else behind & summed
                    continue
                axis = str(user.attr("axis"))
                if _adds_up(user):
                    sums.setdefault(axis, []).append(user.result.name)
                    stack.append((user.result.name, summed | {axis}))
                else:
                    stack.append((user.result.name, summed))
        yield (part.name, node.result.name), {axis: sums[axis] for axis in sums if behind and axis in behind}


def _adds_up(node: Node) -> bool:
    return (
        node.target == "comm.identity" and node.attr("backward") == "all_reduce" and node.attr("owner") is None
    )


def _names(main: Graph, part: Graph) -> Iterator[tuple[Source, tuple[str, ...]]]:
    """The parameters that each source node of a graph stands for."""
    calls = [node for node in main.nodes if node.target == "call" and node.attr("block") == part.name]
    for node in part.sources("param"):
        slot = node.attr("slot")
        names = [str(node.attr("fqn"))]
        if isinstance(slot, int):
            slots = [call.attr("params") for call in calls]
            names = [str(given[slot]) for each in slots for given in each]  # type: ignore[union-attr, index]
        yield (part.name, node.result.name), tuple(dict.fromkeys(names))


def _marked(part: Graph, found: Mapping[Source, Mapping[str, list[str]]], axes: Mapping[Source, Axes]) -> Graph:
    wait = {
        result
        for source, steps in found.items() if source[0] == part.name
        for axis, results in steps.items() if axis in axes[source]
        for result in results
    }  # fmt: skip
    nodes = tuple(node.with_attrs(owner="step") if node.results[0].name in wait else node for node in part.nodes)
    return replace(part, nodes=nodes)
