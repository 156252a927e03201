"""Why a parameter is placed so: each other way costs what a search that is forced to it finds."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from autopar.errors import UsageError
from autopar.explaining import explain, meshes
from autopar.ir.constraints import Constraint
from autopar.ir.plan import Plan
from autopar.models import resolve

CLUSTER = "1x4xA100-SXM-80GB"


def planned(batch: int = 16, **options: Any) -> Plan:
    found = resolve("zoo:gpt2", layers=2, seq_len=64, batch_size=batch)
    return autopar.plan(found.model, found.example_inputs, cluster=CLUSTER, name=found.name, **options)


@pytest.fixture(scope="module")
def split_plan():
    return planned(mesh={"dp": 2, "tp": 2})


def test_forcing_the_runner_up_costs_what_was_said(split_plan):
    (found,) = explain(split_plan, "transformer.h.*.mlp.c_fc.weight")
    second = found.runner_up
    assert second is not None and second.objective_s is not None
    forced = planned(mesh=second.mesh, constraints=[Constraint.parse(second.constraint)])
    assert forced.objective_s == second.objective_s >= found.objective_s


def test_every_other_way_is_tried(split_plan):
    (found,) = explain(split_plan, "transformer.h.*.mlp.c_fc.weight")
    used = found.used["tp"]
    ways = {"R": None, "S(0)": 0, "S(1)": 1}
    wanted = {str(Constraint(found.parameter, dim, "tp" if dim is not None else None))
              for text, dim in ways.items() if text != used}  # fmt: skip
    assert {choice.constraint for choice in found.others} == wanted


def test_on_a_mesh_without_an_axis_to_split_over_other_meshes_are_searched():
    free = planned(batch=256)
    assert set(free.mesh) <= {"dp"}
    (found,) = explain(free, "transformer.h.*.mlp.c_fc.weight")
    second = found.runner_up
    assert second is not None and second.mesh is None and "tp" in (second.found or {})
    forced = planned(batch=256, constraints=[Constraint.parse(second.constraint)])
    assert forced.objective_s == second.objective_s


def test_a_layer_and_a_module_stand_for_their_parameters(split_plan):
    one = explain(split_plan, "transformer.h.1.ln_1.weight")
    assert [each.parameter for each in one] == ["transformer.h.*.ln_1.weight"]
    module = explain(split_plan, "transformer.h.*.ln_1")
    assert sorted(each.parameter for each in module) == ["transformer.h.*.ln_1.bias", "transformer.h.*.ln_1.weight"]


def test_a_name_that_the_plan_does_not_know_is_answered_with_the_nearest(split_plan):
    with pytest.raises(UsageError, match=r"transformer\.wte\.weight"):
        explain(split_plan, "transformer.wte.wait")


def test_a_way_that_is_impossible_says_why(split_plan):
    (found,) = explain(split_plan, "transformer.h.*.ln_1.weight")
    refused = [choice for choice in found.others if choice.objective_s is None]
    assert all(choice.why for choice in refused)


@pytest.mark.slow
def test_no_mesh_is_better_than_its_bound_says():
    plan = planned()
    tried = meshes(plan)
    assert min(each.bound_ns for each in tried) / 1e9 == pytest.approx(plan.lower_bound_s)
    for each in tried[:3]:
        pinned = planned(mesh=dict(each.full.axes))
        assert pinned.objective_s >= each.bound_ns / 1e9 * (1 - 1e-9)
