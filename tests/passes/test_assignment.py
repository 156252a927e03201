"""A solution as data and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.ir.errors import MismatchError
from autopar.ir.plan import Assignment as PlanAssignment
from autopar.ir.text import print_graph
from autopar.passes.assignment import from_plan, to_plan
from autopar.passes.conversions import Conversions
from autopar.passes.lower import lower
from tests.lowered import pricing_of
from tests.parity.planned import Case, planned

CASES = [
    Case(model=name, mesh=mesh, microbatches=n)
    for name in ("gpt2", "llama", "bert")
    for mesh, n in (("dp=2,tp=2", 2), ("tp=4", 1), ("dp=2,cp=2", 1))
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_plan_reads_back_to_the_same_program(case: Case) -> None:
    """Choices as text hold everything: strategies, storage and the lowered program come out equal."""
    found = planned(case)
    data = PlanAssignment.model_validate_json(to_plan(found.assignment).model_dump_json())
    again = from_plan(data, found.model, found.assignment.mesh)
    assert again == found.assignment
    program = lower(found.model, again, Conversions(pricing_of(again.mesh)), case.microbatches)
    assert {p.fqn: p.layout for p in program.parameters} == {p.fqn: p.layout for p in found.program.parameters}
    assert print_graph(program.graph).count("comm.") == print_graph(found.program.graph).count("comm.")


def test_a_plan_for_another_model_is_refused() -> None:
    """The message names what the plan lacks or has too much."""
    llama, bert = planned(Case(model="llama", mesh="tp=4")), planned(Case(model="bert", mesh="tp=4"))
    with pytest.raises(MismatchError, match=r"no placement for|does not say how to run|does not fit"):
        from_plan(to_plan(bert.assignment), llama.model, llama.assignment.mesh)


def test_a_choice_that_does_not_fit_is_refused() -> None:
    """A factor that the shapes do not divide by is named with its node."""
    found = planned(Case(model="gpt2", mesh="tp=4"))
    data = to_plan(found.assignment)
    index = next(i for i, variant in enumerate(data.variants) if variant.graph == found.model.graph.name)
    node = next(n for n in found.model.graph.nodes if n.target == "aten.embedding.default")
    name = node.result.name
    broken = data.variants[index].model_copy(update={"nodes": {**data.variants[index].nodes, name: {"tp": "d/16"}}})
    variants = tuple(broken if i == index else variant for i, variant in enumerate(data.variants))
    with pytest.raises(MismatchError, match=f"placement of {name} = aten.embedding.default does not fit"):
        from_plan(data.model_copy(update={"variants": variants}), found.model, found.assignment.mesh)


def test_calls_name_runs_of_equal_variants() -> None:
    """The runs of a call add up to its count."""
    found = planned(Case(model="llama", mesh="dp=2,tp=2", microbatches=2))
    (call,) = [node for node in found.model.graph.nodes if node.target == "call"]
    runs = found.assignment.calls[call.results[0].name]
    assert sum(repeat for repeat, _ in runs) == call.attr("count") == 2
    assert replace(found.assignment) == found.assignment
