"""The objective, counted anew on the lowered program, is the objective: to 1e-9, rounding included."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autopar.arguments import check
from autopar.compiling import ready
from autopar.cost_model.simulator import Timeline, compare, simulate
from autopar.finding import find_plan, pipeline_of
from autopar.ir.errors import InfeasibleError
from autopar.ir.plan import Plan
from autopar.zoo import find
from benchmarks.search import Case, zoo_cases

TO_1E_9 = 1e-9
MESHES: list[dict[str, int]] = [{"dp": 8}, {"tp": 8}, {"dp": 2, "tp": 4}, {"dp": 4, "cp": 2}]
OPTIONS: list[dict[str, Any]] = [
    {"zero": 0, "recompute": "none"}, {"zero": 1, "recompute": "full"}, {"zero": 3, "recompute": "selective"},
]  # fmt: skip


PIPELINES: list[dict[str, Any]] = [
    {"mesh": {"pp": 2, "dp": 2, "tp": 2}, "zero": 3, "recompute": "selective", "schedule": "1f1b"},
    {"mesh": {"pp": 4, "dp": 2}, "zero": 1, "recompute": "full", "schedule": "interleaved"},
    {"mesh": {"pp": 2, "tp": 4}, "zero": 0, "recompute": "none", "schedule": "zero_bubble"},
    {"mesh": {"pp": 8}, "zero": 0, "recompute": "none", "schedule": "gpipe"},
]  # fmt: skip


def named(options: dict[str, Any]) -> str:
    return "-".join(str(each) for each in options.values()).replace("'", "").replace(" ", "")


def recounted(name: str, size: dict[str, Any], **options: Any) -> tuple[Plan, Timeline]:
    model, inputs = find(name).build(**size)
    arguments = check(**{"name": "model", "cluster": "1x8xH100-SXM", "mixed_precision": "bf16", **options})
    plan, program = find_plan(ready(model, inputs, arguments), arguments)
    pipeline = pipeline_of(plan, program)
    timeline = simulate(
        program, arguments.cluster, arguments.profile, optimizer=plan.optimizer, pipeline=pipeline
    )
    if pipeline is None:  # whose places compute some of it all
        found = timeline.counted[0]
        computed_s = found.compute_s + found.optimizer_s + found.added_s
        assert computed_s == pytest.approx(plan.step_time_s.compute, rel=TO_1E_9)
    assert abs(compare(timeline, plan).unexplained_s) <= TO_1E_9 * plan.objective_s
    for each in program.parameters:  # which FSDP2 could not cut evenly
        assert not (each.layout.is_padded(each.type.shape) and each.runtime_axes and options.get("zero")), each.fqn
    return plan, timeline


@pytest.mark.parametrize("options", OPTIONS, ids=named)
@pytest.mark.parametrize("mesh", MESHES, ids=named)
@pytest.mark.parametrize("name", ["gpt2", pytest.param("bert-large", marks=pytest.mark.slow), "llama3-8b"])
def test_a_step_of_one_microbatch_costs_what_the_plan_says(name: str, mesh: Any, options: dict[str, Any]) -> None:
    """Losses too, which lowering makes one operation of where no axis has taken their classes, and padded heads."""
    size = {"layers": 2, "batch_size": 8, "seq_len": 256}
    recounted(name, size, mesh=mesh, num_microbatches=1, **options)


@pytest.mark.parametrize("mesh", [{"dp": 8}, {"tp": 8}, {"dp": 4, "tp": 2}, {"mix": 8}], ids=named)
@pytest.mark.parametrize("name", ["gpt2", "bert-large", "llama3-8b"])
def test_a_step_of_several_microbatches_costs_what_the_plan_says(name: str, mesh: Any) -> None:
    """Also what runs once for the whole batch: valid labels counted, and labels brought to all that need them."""
    size = {"layers": 2, "batch_size": 32, "seq_len": 256}
    recounted(name, size, mesh=mesh, zero=3, recompute="none", num_microbatches=4)


@pytest.mark.parametrize("options", PIPELINES, ids=named)
@pytest.mark.parametrize("name", ["gpt2", "llama3-8b"])
def test_a_pipeline_costs_what_the_plan_says(name: str, options: dict[str, Any]) -> None:
    """Also what every stage computes for itself, such as rotary tables."""
    _, timeline = recounted(name, {"layers": 8, "batch_size": 32, "seq_len": 256}, num_microbatches=8, **options)
    assert len(timeline.counted) == options["mesh"]["pp"]


@pytest.mark.slow
@pytest.mark.parametrize("case", zoo_cases(), ids=str)
def test_every_model_of_the_zoo_costs_what_its_plan_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its own depth, everything free; what does not fit says by how much."""
    monkeypatch.setattr("autopar.finding.standards", lambda *given, **more: {})  # recipes are not asked about
    size = {"batch_size": case.batch} if case.length is None else {"batch_size": case.batch, "seq_len": case.length}
    try:
        recounted(case.model.removeprefix("zoo:"), size, cluster=case.cluster)
    except InfeasibleError as error:
        said = str(error)
    else:
        return
    assert re.search("needs more than .* GB on each device, .* GB may be used", said)
