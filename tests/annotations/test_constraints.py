"""What a user says of parts of a model is done exactly so, or refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar
from autopar.annotations import annotated
from autopar.api import check_fit
from autopar.errors import InfeasibleError, MismatchError, UsageError
from autopar.ir.constraints import Constraint
from autopar.ir.plan import Plan
from autopar.passes.patterns import starred
from autopar.replay import program_of
from tests.models import labels, llama, tokens

CLUSTER = "1x4xA100-SXM-80GB"
UP = "model.layers.*.mlp.up_proj.weight"


def planned(*constraints: Constraint, layers: int = 4, **options) -> Plan:
    inputs = {"input_ids": tokens(), "labels": labels()}
    return autopar.plan(llama(layers).float(), inputs, cluster=CLUSTER, constraints=constraints, **options)


def stage_of(plan: Plan, fqn: str) -> int:
    _, pipeline, _ = program_of(plan)
    assert pipeline is not None
    (found,) = pipeline.holders(fqn)
    return found


@pytest.mark.parametrize("text", [
    "replicate:a.*.w", "replicate:a:devices=8", "split:w:dim=-1,axis=tp", "split:a[0:2].w:dim=0,axis=mix",
    "stage:h.3:index=2",
])  # fmt: skip
def test_the_text_of_a_constraint_reads_as_itself(text):
    assert str(Constraint.parse(text)) == text


@pytest.mark.parametrize("text", ["stage:w:index=-1", "stage:w", "replicate:w:devices=0", "replicate:w:dim=0", "cut:w"])
def test_what_is_no_constraint_is_refused_with_the_forms(text):
    with pytest.raises(UsageError, match="stage:PATTERN:index=1"):
        Constraint.parse(text)


def test_a_split_is_made_on_that_dim_and_axis():
    plan = planned(autopar.split(UP, dim=-1, axis="tp"), mesh={"dp": 2, "tp": 2})
    assert plan.placements[UP] == {"dp": "R", "tp": "S(1)"}


def test_a_split_brings_the_axis_that_it_needs():
    plan = planned(autopar.split(UP, dim=0, axis="tp"))
    assert plan.mesh["tp"] > 1 and plan.placements[UP]["tp"] == "S(0)"


def test_what_is_replicated_is_whole():
    plan = planned(autopar.replicate("model.layers.*.mlp"), mesh={"tp": 4})
    assert {plan.placements[f"model.layers.*.mlp.{n}_proj.weight"]["tp"] for n in ("up", "down", "gate")} == {"R"}


def test_one_layer_of_a_block_may_be_placed_otherwise():
    """The others keep the block that they share."""
    name = "model.layers.1.mlp.up_proj.weight"
    plan = planned(autopar.split(name, dim=1, axis="tp"), autopar.replicate("model.layers.[023].mlp"), mesh={"tp": 4})
    placed = {fqn: text["tp"] for fqn, text in plan.placements.items() if "up_proj" in fqn}
    assert placed.pop(name) == "S(1)"
    assert set(placed.values()) == {"R"}
    assert sum(block.count for block in plan.blocks) == 4 and len(plan.blocks) == 3


@pytest.mark.slow
def test_a_bound_holds_under_constraints():
    """Cheap bounds know nothing of them, and what they rule out is no better."""
    said = autopar.split(UP, dim=0, axis="tp")
    free = planned(said)
    best = min(planned(said, mesh=mesh).objective_s for mesh in ({"tp": 4}, {"dp": 2, "tp": 2}, {"cp": 2, "tp": 2}))
    assert free.lower_bound_s <= free.objective_s <= best * (1 + 1e-9)


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_a_stage_begins_where_it_is_asked_for(layer):
    said = autopar.stage(f"model.layers.{layer}", 1), autopar.stage(f"model.layers.{layer - 1}", 0)
    plan = planned(*said, mesh={"pp": 2, "dp": 2}, num_microbatches=4)
    assert stage_of(plan, f"model.layers.{layer}.mlp.up_proj.weight") == 1
    assert stage_of(plan, f"model.layers.{layer - 1}.mlp.up_proj.weight") == 0


def test_a_stage_asks_for_a_pipeline_where_the_mesh_is_free():
    plan = planned(autopar.stage("model.layers.3", 1), num_microbatches=4)
    assert plan.mesh["pp"] >= 2 and stage_of(plan, "model.layers.3.mlp.up_proj.weight") == 1


def test_a_number_of_devices_is_that_of_a_stage():
    plan = planned(autopar.replicate("model.layers.*.mlp", devices=2), num_microbatches=4)
    assert plan.mesh["pp"] == 2


@pytest.mark.parametrize("pair", [
    (autopar.replicate(UP), autopar.split(UP, dim=0, axis="tp")),
    (autopar.split(UP, dim=0, axis="tp"), autopar.split("model.layers.1.mlp", dim=1, axis="tp")),
    (autopar.stage("model.layers.2", 0), autopar.stage(UP, 1)),
    (autopar.replicate(UP, devices=2), autopar.replicate("*", devices=4)),
])  # fmt: skip
def test_two_that_contradict_each_other_are_both_named(pair):
    with pytest.raises(InfeasibleError, match="contradict") as caught:
        planned(*pair)
    assert caught.value.details["conflict"] == [str(each) for each in pair]
    assert all(str(each) in str(caught.value) for each in pair)


def test_layers_in_another_order_than_the_model_runs_are_refused_before_any_search(monkeypatch):
    monkeypatch.setattr("autopar.passes.search.search", lambda *_, **__: pytest.fail("searched"))
    said = autopar.stage("model.layers.0", 1), autopar.stage("model.layers.3.mlp", 0)
    told = r"model\.layers\.0\.\S+ is run before model\.layers\.3\.mlp\.\S+, and cannot stand in a later stage"
    with pytest.raises(InfeasibleError, match=told) as caught:
        planned(*said)
    assert caught.value.details["conflict"] == [str(each) for each in said]
    assert all(str(each) in str(caught.value) for each in said)


def test_parts_in_another_order_than_the_model_runs_are_refused():
    said = autopar.stage("model.layers.3", 1), autopar.stage("lm_head", 0)
    with pytest.raises(InfeasibleError, match="parts follow each other") as caught:
        planned(*said, mesh={"pp": 2, "dp": 2}, num_microbatches=4)
    assert all(str(each) in str(caught.value) for each in said)


def test_what_runs_after_the_layers_may_be_said_to_stand_in_the_last_stage():
    """It counts where it is used: what converts it may be computed anywhere."""
    plan = planned(autopar.stage("lm_head", 1), mesh={"pp": 2, "dp": 2}, num_microbatches=4, zero=3)
    assert stage_of(plan, "lm_head.weight") == 1


def test_parts_of_one_layer_are_not_told_in_what_order_they_run():
    """Where both fit is the search's to find out: a stage may begin inside a layer."""
    said = autopar.stage("model.layers.3.mlp", 1), autopar.stage("model.layers.3.self_attn", 0)
    with pytest.raises(InfeasibleError, match="parts follow each other"):
        planned(*said, mesh={"pp": 2, "dp": 2}, num_microbatches=4)


def test_a_stage_that_the_mesh_does_not_have_is_refused():
    with pytest.raises(InfeasibleError, match=r"stage:model\.layers\.0:index=1 needs a pipeline of 2 stages"):
        planned(autopar.stage("model.layers.0", 1), mesh={"dp": 4})


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("model.layer.0", "model.layers.0"), ("model.layers.9", "model.layers.3"),
        ("model.layers.*.mlp.upproj.weight", UP), ("model.layers.*.up", "model.layers.*"), ("lmhead", "lm_head"),
    ],
)  # fmt: skip
def test_a_pattern_that_means_nothing_is_answered_with_the_nearest(pattern, near):
    """What layers repeat is told once."""
    with pytest.raises(UsageError, match="no parameter or module matches; the nearest are ") as caught:
        planned(autopar.replicate(pattern))
    names = str(caught.value).partition("the nearest are ")[2].split(", ")
    assert near in names
    assert len({starred(name) for name in names}) == len(names) == 3


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dim_that_a_parameter_does_not_have_is_refused(dim):
    with pytest.raises(UsageError, match="has 2 dims"):
        planned(autopar.split(UP, dim=dim, axis="tp"))


def test_a_negative_dim_of_parameters_with_different_numbers_of_dims_is_refused():
    with pytest.raises(UsageError, match="count from the first"):
        planned(autopar.split("model.layers.*", dim=-1, axis="tp"))


class Two(nn.Module):
    """A wide classifier that is annotated where it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 16, bias=False)
        with autopar.split(dim=0, axis="tp"):
            self.head = nn.Linear(16, 64, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(self.body(x).relu()), y)


def test_what_is_built_inside_is_meant():
    assert annotated(Two(), ()) == (Constraint("head.weight", dim=0, axis="tp"),)
    inputs = (torch.randn(8, 16), torch.randint(64, (8,)))
    plan = autopar.plan(Two(), inputs, cluster=CLUSTER, mesh={"dp": 2, "tp": 2})
    assert plan.placements["head.weight"]["tp"] == "S(0)"


def test_annotations_inside_each_other_all_count():
    with autopar.stage(index=1), autopar.replicate("*.bias"):
        model = nn.Sequential(nn.Linear(2, 2))
    wanted = {Constraint("0.weight", index=1), Constraint("0.bias", index=1), Constraint("0.bias")}
    assert set(annotated(model, ())) == wanted


def test_after_the_block_nothing_is_annotated_any_more():
    with pytest.raises(RuntimeError, match="stop"), autopar.replicate():
        raise RuntimeError("stop")
    assert annotated(nn.Linear(2, 2), ()) == ()


def test_a_plan_that_was_made_with_annotations_fits_its_model():
    name = "model.layers.1.mlp.up_proj.weight"
    plan = planned(autopar.split(name, dim=1, axis="tp"), mesh={"tp": 4})
    check_fit(plan, llama(4).float(), {"input_ids": tokens(), "labels": labels()})
    with pytest.raises(MismatchError):
        check_fit(plan, llama(3).float(), {"input_ids": tokens(), "labels": labels()})
