"""``autopar plan``: what it hands to the API, prints and saves."""

from __future__ import annotations

import os

import pytest

from autopar.cli.options import Like
from autopar.ir.constraints import Constraint
from autopar.ir.plan import RECIPE_NAMES, Plan

MODEL = ("plan", "zoo:gpt2", "--layers", 1, "--batch-size", 4, "--seq-len", 16)
PLAN = (*MODEL, "--cluster", "1x2xCPU")


def test_without_options_everything_is_left_to_the_search(cli, api):
    assert cli(*PLAN).code == 0
    free = ("mesh", "memory_budget", "mixed_precision", "num_microbatches", "schedule", "zero", "recompute", "like")
    assert {api.keywords[key] for key in free} == {None}
    assert (api.keywords["optimizer"], api.keywords["rng"], api.keywords["time_limit"]) == (
        "adamw",
        "exact",
        60.0,
    )
    assert (api.keywords["constraints"], api.keywords["name"]) == ((), "zoo:gpt2")


def test_every_option_reaches_the_keyword_of_its_name(cli, api):
    words = "--mesh dp=2 --memory-budget 60GiB --optimizer sgd --mixed-precision bf16 --num-microbatches 2"
    words += " --schedule 1F1B --zero 3 --recompute full --rng fast --time-limit 2min --like megatron"
    assert cli(*PLAN, *words.split()).code == 0
    others = ("cluster", "profile", "name", "progress", "sizes", "recipes")
    kwargs = {key: api.keywords[key] for key in api.keywords if key not in others}
    assert kwargs == {
        "mesh": {"dp": 2},
        "memory_budget": 60 * 2**30,
        "optimizer": "sgd",
        "mixed_precision": "bf16",
        "num_microbatches": 2,
        "schedule": "1F1B",
        "zero": 3,
        "recompute": "full",
        "like": "megatron",
        "rng": "fast",
        "time_limit": 120.0,
        "constraints": (),
    }


def test_the_model_has_the_sizes_that_were_asked_for(cli, api):
    cli(*PLAN)
    ((_, (model, inputs), _),) = api.calls
    assert (len(model.transformer.h), tuple(inputs["input_ids"].shape)) == (1, (4, 16))


def test_cluster_and_profile_are_read_before_the_search(cli, api):
    cli(*PLAN, "--profile", "builtin")
    assert (str(api.keywords["cluster"]), api.keywords["profile"].name) == ("1x2xCPU", "builtin")


def test_constraints_become_those_of_the_api(cli, api):
    cli(*PLAN, "--constraint", "replicate:*.ln_1", "--constraint", "split:wte:dim=0,axis=tp")
    assert api.keywords["constraints"] == (
        Constraint("*.ln_1"),
        Constraint("wte", dim=0, axis="tp"),
    )


def test_without_a_cluster_this_machine_is_taken_and_said(cli, api, monkeypatch):
    monkeypatch.setattr("autopar.cli.machine.gpu_names", list)
    result = cli(*MODEL)
    assert result.err.startswith("note: no --cluster: taking this machine, 1x")
    assert api.keywords["cluster"].devices == ("CPU",)


def test_a_bare_number_of_memory_is_bytes(cli, api):
    cli(*PLAN, "--memory-budget", "1000")
    assert api.keywords["memory_budget"] == 1000


def test_json_is_the_plan_with_its_search(cli, api):
    result = cli(*PLAN, "--json")
    assert result.document == api.made.document() | {"search": api.made.search}
    assert result.err == ""


def test_the_saved_plan_has_no_timings(cli, api, tmp_path):
    path = tmp_path / "plan.json"
    result = cli(*PLAN, "-o", path)
    assert f"note: saved {path}\n" in result.err
    assert path.read_bytes() == api.made.to_bytes()
    assert Plan.load(path).search is None


def test_a_saved_plan_replaces_the_old_one_whole(cli, api, saved):
    os.chmod(saved, 0o640)
    cli(*PLAN, "-o", saved)
    assert [path.name for path in saved.parent.iterdir()] == ["plan.json"]
    assert saved.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("name", "reason"), [("absent/plan.json", "does not exist"), (".", "is a folder")])
def test_a_file_that_cannot_be_written_is_refused_before_the_search(cli, api, tmp_path, name, reason):
    result = cli(*PLAN, "-o", tmp_path / name)
    assert (result.code, api.calls) == (2, [])
    assert reason in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mesh", "dp=x"), "--mesh dp=x: 'dp=x' is not AXIS=SIZE"),
        (("--memory-budget", "60GX"), "'60GX' is not a size"),
        (("--constraint", "stage:x"), "not a constraint"),
        (("--time-limit", "0"), "must be more than zero"),
        (("--cluster", "8H100"), "'8H100' is not a cluster"),
        (("--profile", "bultin"), "did you mean builtin"),
    ],
)
def test_a_wrong_value_is_found_before_the_model_is_built(cli, api, monkeypatch, words, message):
    monkeypatch.setattr("autopar.models.resolve", lambda *_, **__: pytest.fail("built the model"))
    result = cli(*PLAN, *words)
    assert (result.code, api.calls) == (2, [])
    assert message in result.err


def test_an_unknown_recipe_is_answered_with_those_that_exist(cli, api):
    result = cli(*PLAN, "--like", "zero2")
    assert (result.code, api.calls) == (2, [])
    assert all(repr(name) in result.err for name in RECIPE_NAMES)
    assert tuple(Like) == RECIPE_NAMES


def test_a_recipe_that_cannot_be_placed_is_infeasible(cli):
    words = "plan zoo:gpt2 --layers 1 --batch-size 3 --seq-len 16 --cluster 1x2xCPU --like data_parallel --json"
    result = cli(*words.split())
    assert result.code == 4
    assert "dp=2 does not divide the batch of 3" in result.document["error"]["details"]["why"]


def test_a_recipe_that_does_not_fit_is_infeasible(cli):
    result = cli(*PLAN, "--like", "data_parallel", "--memory-budget", "700MB")
    assert result.code == 4
    assert "0.7 GB may be used" in result.err
    assert "like='data_parallel'" in result.err


def test_an_unknown_model_is_answered_with_the_nearest(cli, api):
    result = cli("plan", "zoo:gpt", "--cluster", "1x2xCPU")
    assert (result.code, api.calls) == (2, [])
    assert "did you mean gpt2?" in result.err


def test_a_broken_cluster_file_names_key_and_line(cli, api, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[[nodes]]\ncount = 1\ngpu = 8\n")
    result = cli("plan", "zoo:gpt2", "--cluster", path)
    assert result.code == 6
    assert "line 3: nodes.0.gpu is an unknown key" in result.err.replace("nodes[0]", "nodes.0")


def test_the_time_of_the_search_is_a_note(cli, api):
    result = cli(*PLAN)
    assert "found in 1.50 s (tracing 0.25, solving 1.00)" in result.err
    assert "found in" not in result.out
