"""Views that are decided with what they view: the best placement is the same, and every node has one."""

from __future__ import annotations

import pytest

from autopar.passes.build import Builder
from autopar.passes.solve import solve
from tests.parity.planned import Case, encode, planned

CASES = [
    Case(model=model, mesh=mesh, recompute=recompute)
    for model in ("gpt2", "llama", "bert") for mesh in ("tp=2", "dp=2,tp=2") for recompute in (None, "full")
]  # fmt: skip
AMPLE = 10**12


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_best_placement_is_as_fast_as_with_views_decided_alone(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, together, _ = encode(case)
    monkeypatch.setattr(Builder, "_follows", lambda *_: False)
    _, alone, _ = encode(case)
    led = sum(len(variable.followers) for each in together.variables.values() for variable in each)
    assert led >= 4
    assert sum(map(len, alone.variables.values())) == sum(map(len, together.variables.values())) + led
    found = [solve(encoded.problem, memory_bytes=AMPLE) for encoded in (together, alone)]
    assert found[0].status == found[1].status == "optimal"
    assert found[0].objective_ns == found[1].objective_ns


@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_every_node_has_a_strategy_that_reads_what_is_there(case: Case) -> None:
    plan = planned(case)
    for variables in plan.encoded.variables.values():
        for variable in variables:
            for _, strategies in variable.followers:
                assert len(strategies) == len(variable.values)
    graphs = {graph.name: graph for graph in (plan.model.graph, *plan.model.graph.blocks)}
    variants = [plan.assignment.main, *(v for runs in plan.assignment.calls.values() for _, v in runs)]
    for variant in variants:
        decided = set(variant.nodes)
        made = {
            node.results[0].name for node in graphs[variant.graph].nodes
            if (variant.graph, node.results[0].name) in plan.model.shapes
        }  # fmt: skip
        assert decided <= made
        assert variant.graph == plan.model.graph.name or decided == made
