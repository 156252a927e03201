"""The standard recipes: what each is, that it can be asked for, and that no plan is slower than one that fits."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

import autopar
from autopar import choosing
from autopar.arguments import check
from autopar.compiling import ready
from autopar.cost_model import Cluster, CostProfile
from autopar.errors import InfeasibleError, UsageError
from autopar.ir.plan import LATE, RECIPE_NAMES, Plan, RecipeInfo
from autopar.models import resolve
from autopar.passes import comparing
from autopar.passes.bounds import Known
from autopar.passes.build import Model
from autopar.passes.comparing import not_slower, standards
from autopar.passes.found import Found, Limits
from autopar.passes.outer import Candidate
from autopar.passes.plain import Plain
from autopar.passes.positions import positions
from autopar.passes.recipes import RECIPES
from autopar.passes.search import search

BATCH = 8
# What is pinned says nothing of recipes, and makes the plan beside them a matter of one problem.
PINS: dict[str, Any] = {"mesh": {"dp": 4}, "zero": 3}


def llama(*, layers: int = 4, heads: int = 4, vocab: int = 512) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=32 * heads, intermediate_size=64 * heads, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def planned(
    *, cluster: str = "2x2xH100-SXM", batch: int = BATCH, layers: int = 4, heads: int = 4, vocab: int = 512,
    **options: Any,
) -> Plan:  # fmt: skip
    tokens = torch.zeros(batch, 64, dtype=torch.int64, device="meta")
    model = llama(layers=layers, heads=heads, vocab=vocab)
    return autopar.plan(model, {"input_ids": tokens, "labels": tokens}, cluster=cluster, recipes=True, **options)


def asked() -> tuple[Model, Cluster, CostProfile, int, Known]:
    """What recipes are asked with."""
    tokens = torch.zeros(BATCH, 64, dtype=torch.int64, device="meta")
    arguments = check(cluster="1x4xH100-SXM")
    model = ready(llama(), {"input_ids": tokens, "labels": tokens}, arguments).model
    known = Known(positions(model.graph, model.rules, model.settings.inputs))
    return model, arguments.cluster, arguments.profile, arguments.memory_bytes, known


def fitting(plan: Plan) -> list[float]:
    return [found.objective_s for found in plan.recipes.values() if found.fits and found.objective_s is not None]


@pytest.mark.parametrize(
    ("name", "mesh", "zero"),
    [("data_parallel", {"dp": 4}, 0), ("zero3", {"dp": 4}, 3), ("megatron", {"dp": 2, "tp": 2}, 1)],
)
def test_a_recipe_without_a_pipeline_has_its_mesh_and_level(name: str, mesh: dict[str, int], zero: int) -> None:
    plan = planned(like=name)
    assert plan.mesh == mesh
    assert set(plan.zero.values()) == {zero}
    assert plan.hsdp == {}
    assert plan.schedule is None


def test_stages_of_gpipe_are_equal_even_where_others_would_be_faster() -> None:
    """A large vocabulary makes the last layers' stage slow; 1F1B, cut freely, moves layers away from it."""
    sizes: dict[str, Any] = {"layers": 8, "vocab": 16384, "cluster": "1x2xH100-SXM"}
    plan = planned(like="gpipe", **sizes)
    assert (plan.schedule, plan.mesh["pp"]) == ("gpipe", 2)
    assert [stage.where for stage in plan.stages] == ["model.layers.4"]
    assert set(plan.zero.values()) == {0}
    assert [stage.where for stage in planned(mesh={"pp": 2}, **sizes).stages] != ["model.layers.4"]


def test_three_axes_keep_tensor_parallelism_inside_nodes() -> None:
    plan = planned(like="hybrid_3d")
    assert math.prod(plan.mesh.values()) == 4
    assert 2 % plan.mesh.get("tp", 1) == 0
    assert plan.schedule == ("1f1b" if plan.mesh.get("pp", 1) > 1 else None)
    assert plan.objective_s <= planned(like="megatron").objective_s


def test_what_cannot_fit_is_not_worked_out_where_a_pipeline_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[tuple[str, ...]] = []

    def counted(self: Plain, candidate: Candidate, *, hooked: bool) -> None:
        asked_for.append(candidate.full.names)
        original(self, candidate, hooked=hooked)

    original = Plain.counted
    monkeypatch.setattr(Plain, "counted", counted)
    assert planned(like="hybrid_3d", memory_budget="6MB").mesh["pp"] == 4
    assert asked_for == [("dp", "tp")], "of dp alone it was known"


@pytest.mark.slow
def test_the_bound_of_a_recipe_holds_for_what_a_quick_search_leaves_out() -> None:
    sizes: dict[str, Any] = {"layers": 2, "cluster": "1x2xH100-SXM", "memory_budget": "9MB", "batch": 16}
    plan = planned(like="zero3", **sizes)
    best = planned(mesh={"dp": 2}, zero=3, **sizes)
    assert plan.lower_bound_s <= best.objective_s <= plan.objective_s


@pytest.mark.parametrize("heads", [2, 6])
def test_tensor_parallelism_is_as_wide_as_the_heads_allow(heads: int) -> None:
    assert planned(like="megatron", heads=heads, cluster="1x4xH100-SXM").mesh == {"dp": 2, "tp": 2}


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, "15MB"])
def test_what_a_recipe_takes_is_what_its_plan_takes(budget: str | None) -> None:
    plan = planned(memory_budget=budget, **PINS)
    assert tuple(plan.recipes) == RECIPE_NAMES == tuple(RECIPES)
    for name, found in plan.recipes.items():
        if found.fits:
            asked = planned(memory_budget=budget, like=name)
            assert (found.objective_s, found.mesh) == (asked.objective_s, asked.mesh)
            assert asked.recipes == {}


@pytest.mark.parametrize(
    ("cluster", "budget"),
    [
        ("1x2xH100-SXM", None),
        pytest.param("2x2xV100-SXM2-32GB@10Gb/s", None, marks=pytest.mark.slow),
        pytest.param("2x2xH100-SXM", "9MB", marks=pytest.mark.slow),
    ],
)
def test_no_plan_is_slower_than_a_recipe_that_fits(cluster: str, budget: str | None) -> None:
    plan = planned(cluster=cluster, memory_budget=budget)
    assert plan.objective_s <= min(fitting(plan))
    assert plan.lower_bound_s <= plan.objective_s


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "t5-large", "llama3-8b", "vit-large", "resnet50-100k"])
@pytest.mark.parametrize("cluster", ["1x8xH100-SXM", "2x2xA100-SXM-80GB", "8x1xV100-SXM2-32GB@10Gb/s"])
def test_no_plan_of_a_known_model_is_slower_than_a_recipe_that_fits(name: str, cluster: str) -> None:
    model = resolve(f"zoo:{name}", batch_size=32)
    half = "fp16" if "V100" in cluster else "bf16"
    plan = autopar.plan(model.model, model.example_inputs, cluster=cluster, mixed_precision=half, recipes=True)
    assert all(plan.objective_s <= time_s for time_s in fitting(plan))


@pytest.mark.slow
def test_pins_change_the_plan_and_not_the_recipes() -> None:
    free = planned()
    constraint = autopar.replicate("lm_head.weight")
    assert free.recipes == planned(num_microbatches=1, constraints=[constraint], **PINS).recipes


@pytest.mark.slow
def test_a_recipe_that_does_not_fit_says_what_it_needs_and_what_it_would_take() -> None:
    sizes: dict[str, Any] = {"layers": 2, "cluster": "1x4xH100-SXM"}
    plan = planned(memory_budget="10MB", **PINS, **sizes)
    copies = plan.recipes["data_parallel"]
    assert not copies.fits
    assert "GB on each device, 0.01 GB may be used" in copies.why
    assert copies.objective_s == planned(like="data_parallel", **sizes).objective_s
    with pytest.raises(InfeasibleError, match=r"in conflict: .*like='data_parallel'") as refusal:
        planned(memory_budget="10MB", like="data_parallel", **sizes)
    assert "leaving like='data_parallel' out" in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "sizes", "why"),
    [
        ("data_parallel", {"batch": 6}, "mesh dp=4 does not divide the batch of 6"),
        pytest.param(
            "gpipe", {"layers": 3}, "3 repeated layers cannot be cut into equal stages for 4 device",
            marks=pytest.mark.slow,
        ),
        ("gpipe", {"batch": 2, "cluster": "1x4xH100-SXM"}, "2 or more microbatches; possible here: 1"),
        pytest.param(
            "megatron", {"heads": 3}, "no size of tp up to the 2 devices of a node divides heads",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_placed_says_why(name: str, sizes: dict[str, Any], why: str) -> None:
    found = planned(**sizes).recipes[name]
    assert (found.objective_s, found.fits, found.mesh) == (None, False, {})
    assert why in found.why
    with pytest.raises(InfeasibleError, match=f"the recipe {name} cannot be placed: "):
        planned(like=name, **sizes)


def test_one_device_has_recipes_too() -> None:
    plan = planned(cluster="1x1xH100-SXM")
    assert {name for name, found in plan.recipes.items() if not found.fits} == {"gpipe"}


def test_an_unknown_recipe_is_answered_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"like='zero2': .*'megatron', 'gpipe', 'hybrid_3d'"):
        planned(like="zero2")


def test_a_recipe_leaves_no_room_for_another_mesh() -> None:
    with pytest.raises(UsageError, match="says mesh, ZeRO level and schedule: leave mesh and zero out"):
        planned(like="zero3", mesh={"dp": 4}, zero=3)


def test_what_a_recipe_leaves_open_can_be_pinned() -> None:
    plan = planned(like="zero3", num_microbatches=2, recompute="full")
    assert (plan.num_microbatches, plan.recompute["block0"]) == (2, "full")


def test_a_recipe_that_is_faster_than_what_was_found_is_taken() -> None:
    """Nothing but effort keeps the search from it; what it proved stands."""
    model, cluster, profile, memory_bytes, known = asked()
    found = search(model, cluster, profile, Limits(memory_bytes=memory_bytes), known=known)
    beside = standards(model, cluster, profile, memory_bytes, known)
    as_fast = not_slower(found, beside)
    assert as_fast[0].assignment == found.assignment and {one.objective_ns for one in as_fast} == {found.objective_ns}
    slow = replace(found, objective_ns=10 * found.objective_ns)
    taken = not_slower(slow, beside)[0]
    best = min(s.found().objective_ns for s in beside.values() if s.info.fits)
    assert (taken.objective_ns, taken.bound_ns) == (best, min(best, found.bound_ns))
    comes = {name: s.comes._replace(info=s.info.model_copy(update={"fits": False})) for name, s in beside.items()}
    unfit = {name: replace(beside[name], comes=one) for name, one in comes.items()}
    assert [one.objective_ns for one in not_slower(slow, unfit)] == [slow.objective_ns]


def test_of_plans_that_are_as_fast_the_simulator_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first; the first of equal programs, which it need not simulate."""
    tokens = torch.zeros(BATCH, 64, dtype=torch.int64, device="meta")
    arguments = check(cluster="1x4xH100-SXM")
    model = ready(llama(), {"input_ids": tokens, "labels": tokens}, arguments).model
    marks = positions(model.graph, model.rules, model.settings.inputs)
    limits = Limits(memory_bytes=arguments.memory_bytes)
    made = [
        choosing.lowered(search(
            model, arguments.cluster, arguments.profile, replace(limits, like=name), known=Known(marks)
        ), marks) for name in ("zero3", "megatron")
    ]  # fmt: skip
    times = [choosing.simulated_s(one) for one in made]
    assert times[0] != times[1]
    best = made[times.index(min(times))]
    assert choosing.fastest(made) is best and choosing.fastest(made[::-1]) is best
    monkeypatch.setattr(choosing, "simulated_s", None)
    assert choosing.fastest([made[0], made[0]]) is made[0]


def test_recipes_end_with_the_time_that_there_is_for_them() -> None:
    """And are not said to be what was found so far."""
    ended = [each.info for each in standards(*asked(), 0.0).values()]
    assert ended == [RecipeInfo(objective_s=None, fits=False, why=LATE) for _ in RECIPES]
    assert not any(each.info.late for each in standards(*asked(), 60.0).values())


@pytest.mark.slow
def test_a_recipe_of_one_stage_is_worked_out_by_all_means() -> None:
    """Else no layers would be recomputed fully and others in part, and a plan look faster beside it than it is."""
    model = resolve("zoo:llama3-70b", batch_size=512, seq_len=4096)
    asked: dict[str, Any] = {"cluster": "8x8xH100-SXM", "mixed_precision": "bf16"}
    recipe = autopar.plan(model.model, model.example_inputs, like="zero3", **asked)
    pinned = autopar.plan(model.model, model.example_inputs, mesh={"dp": 64}, zero=3, **asked)
    assert pinned.lower_bound_s <= recipe.objective_s <= 1.002 * pinned.objective_s


def test_a_second_core_changes_nothing_but_who_works_recipes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str | None] = []

    def noted(*given: Any, **more: Any) -> Found:
        calls.append(given[3].like)
        if len(calls) == 1:
            time.sleep(0.5)  # a helper has begun with the first by then
        return search(*given, **more)

    monkeypatch.setattr(comparing, "search", noted)
    beside, made = [], []
    for cores in ({0}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        calls.clear()
        beside.append(standards(*asked()))
        made.append([*calls])
    alone, helped = beside
    assert [*alone] == [*helped] == [*RECIPES]
    assert made[0] == [*reversed(RECIPES)]
    assert made[1][0] == "hybrid_3d" and "data_parallel" not in made[1]
    assert {name: each.comes for name, each in alone.items()} == {name: each.comes for name, each in helped.items()}
    calls.clear()
    for name in ("hybrid_3d", "data_parallel"):
        assert helped[name].found().assignment == alone[name].found().assignment
    assert calls == ["data_parallel"]  # worked out again, once it is asked for
