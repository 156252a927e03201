"""Exactly one party adds up a parameter's gradient over each axis: the runtime, the graph, or nobody needs to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autopar.ir.graph import Graph, Node
from autopar.ir.layout import RSTAR, R, Shard
from autopar.ir.program import MICROBATCH_AXIS
from tests.lowered import all_graphs, names_of
from tests.parity.planned import Case, planned

MESHES = ("dp=2", "tp=2", "dp=2,tp=2", "cp=2", "dp=2,cp=2", "tp=4")
CASES = [
    Case(model=name, mesh=mesh, microbatches=n) for name in ("gpt2", "llama", "bert") for mesh in MESHES for n in (1, 2)
]


def paths(graph: Graph, name: str) -> Iterator[tuple[tuple[Node, ...], str]]:
    """Conversions on the way from a value to each operation that uses it, and the value that is used."""
    stack: list[tuple[tuple[Node, ...], str]] = [((), name)]
    consumers = graph.consumers()
    while stack:
        steps, at = stack.pop()
        for node in consumers[at]:
            if node.target.startswith("comm."):
                stack.append(((*steps, node), node.result.name))
            else:
                yield steps, at


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_reduction_has_one_owner(case: Case) -> None:
    """Where a use returns part of the gradient, one step of its path adds the parts; elsewhere none does."""
    program = planned(case).program
    parameters = {parameter.fqn: parameter for parameter in program.parameters}
    seen = 0
    for graph in all_graphs(program):
        for node in graph.sources("param"):
            for steps, used in paths(graph, node.result.name):
                layout = graph.values()[used].layout
                assert layout is not None
                for axis in layout.mesh.names:
                    sums = [
                        s
                        for s in steps
                        if s.attr("axis") == axis and s.attr("backward") in ("all_reduce", "reduce_scatter")
                    ]
                    owners = {str(s.attr("owner", "graph")) for s in sums}
                    for fqn in names_of(program, graph, node):
                        expected = layout[axis] == RSTAR or axis == MICROBATCH_AXIS
                        assert len(sums) == expected, f"{fqn} on {axis}: {len(sums)} sums on the way to {used}"
                        by_runtime = axis in parameters[fqn].runtime_axes or axis == MICROBATCH_AXIS
                        assert (owners == {"runtime"}) == by_runtime, f"{fqn} on {axis}: {owners}"
                        seen += 1
    assert seen


@pytest.mark.parametrize("case", [c for c in CASES if c.microbatches == 1], ids=str)
def test_the_runtime_owns_data_axes_only(case: Case) -> None:
    """A tensor-parallel axis is the graph's, and so is a data axis on which a parameter is kept in parts."""
    for parameter in planned(case).program.parameters:
        assert set(parameter.runtime_axes) <= {"dp", "cp"}
        assert all(parameter.layout[axis] == R for axis in parameter.runtime_axes)
        owned = [a for a in parameter.layout.mesh.names if isinstance(parameter.layout[a], Shard)]
        assert set(owned) <= {"tp"}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_data_parallel_layers_are_all_the_runtimes(name: str) -> None:
    """Plain data parallelism leaves no weight of a layer to the graph, so that FSDP2 may shard them all."""
    program = planned(Case(model=name, mesh="dp=2", zero=3)).program
    layers = [p for p in program.parameters if p.group]
    assert len(layers) >= 12 and all(p.runtime_axes == ("dp",) for p in layers)
    assert set(program.zero.values()) == {3}
