"""Planning a pipeline: what is pinned, what is refused, what the plan says."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from autopar.errors import UnsupportedError, UsageError
from autopar.ir.plan import Plan
from tests.families import FAMILIES
from tests.families.measure import PROFILE


def planned(family: str = "gpt2", world: int = 4, **options: Any) -> Plan:
    found = FAMILIES[family]
    return autopar.plan(found.build(), found.batch(), cluster=f"1x{world}xCPU", profile=PROFILE, loss_fn=found.loss_fn,
                        **options)  # fmt: skip


def test_a_plan_says_where_its_stages_begin(tmp_path: Any) -> None:
    plan = planned(mesh={"pp": 2, "dp": 2})
    assert plan.mesh == {"pp": 2, "dp": 2} and plan.axes == ("pp", "dp")
    assert plan.schedule == "1f1b" and plan.num_microbatches >= 2
    assert [stage.where for stage in plan.stages] == ["transformer.h.1"]
    assert len(plan.memory.peak_bytes) == 2 and max(plan.memory.peak_bytes) <= plan.memory.budget_bytes
    assert plan.step_time_s.bubble > 0 and plan.lower_bound_s <= plan.objective_s
    sends = [entry for entry in plan.collectives if entry.kind == "send"]
    assert {(entry.axis, entry.phase) for entry in sends} <= {("pp", "forward"), ("pp", "backward")} and sends
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan.model_copy(update={"search": None, "plan_sha256": plan.sha256})


def test_a_tied_parameter_is_held_by_each_stage_that_has_it_and_added_up() -> None:
    tied = planned("gpt2", 2, mesh={"pp": 2})
    embedding = FAMILIES["gpt2"].build().get_parameter("transformer.wte.weight")
    least = 4 * embedding.numel() * embedding.element_size()  # itself, its gradient, two moments
    assert min(tied.memory.peak_bytes) > least
    between = [entry for entry in tied.collectives if (entry.kind, entry.axis) == ("all_reduce", "pp")]
    assert [(entry.bytes, entry.count, entry.phase) for entry in between] == [(least // 4, 1, "grad")]


def test_the_pipeline_axis_may_be_left_free() -> None:
    plan = planned(mesh={"pp": -1, "dp": -1})
    assert plan.mesh.get("pp", 1) * plan.mesh["dp"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": {"pp": 3}}, r"mesh pp=3 does not divide the 4 devices: sizes that work are 1, 2, 4"),
        ({"mesh": {"pp": 4}, "num_microbatches": 2}, "needs 4 or more microbatches"),
        ({"mesh": {"dp": 4}, "schedule": "1f1b"}, "needs pipeline stages"),
        ({"mesh": {"pp": 4}, "schedule": "2f2b"}, "schedule='2f2b': one of"),
        ({"mesh": {"pp": 2, "dp": 2}, "schedule": "zero_bubble", "zero": 3}, "gives wrong gradients"),
    ],
)
def test_what_no_pipeline_can_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(**options)


def test_zero_bubble_is_never_planned_with_parameters_sharded_again() -> None:
    plan = planned("llama", mesh={"pp": 2, "dp": 2}, schedule="zero_bubble")
    assert plan.schedule == "zero_bubble" and 3 not in plan.zero.values()


def test_batch_norm_forbids_the_microbatches_of_a_pipeline_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"changes the buffer resnet\..*; use num_microbatches=1"):
        planned("resnet", 2, mesh={"pp": 2})
