"""``autopar explain`` and ``autopar diff``: what they print, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autopar
from autopar.models import resolve
from tests.cli.plans import example_plan

NAME = "transformer.h.*.mlp.c_fc.weight"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two layers on four devices."""
    found = resolve("zoo:gpt2", layers=2, seq_len=64, batch_size=16)
    mesh = {"dp": 2, "tp": 2}
    plan = autopar.plan(found.model, found.example_inputs, cluster="1x4xA100-SXM-80GB", name=found.name, mesh=mesh)
    made = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(made)
    return made


def test_a_parameter_has_a_runner_up_and_what_forces_it(cli, path):
    result = cli("explain", path, NAME)
    assert result.code == 0
    assert "runner-up" in result.out and "--constraint" in result.out and "dp 2 × tp 2" in result.out


def test_as_json_the_choices_are_data(cli, path):
    (found,) = cli("explain", path, NAME, "--json").document["parameters"]
    assert found["parameter"] == NAME and len(found["others"]) == 2
    assert {other["constraint"].split(":")[0] for other in found["others"]} <= {"replicate", "split"}


def test_a_whole_plan_is_explained_by_its_meshes(cli, path):
    document = cli("explain", path, "--json").document
    assert [row["mesh"] for row in document["meshes"]] == [{"dp": 2, "tp": 2}]
    assert document["meshes"][0]["chosen"]
    assert "chosen" in cli("explain", path).out


def test_what_if_shows_both_plans_and_saves_the_other(cli, path, tmp_path):
    result = cli("explain", path, "--what-if", "bandwidth.intra=5GB/s", "-o", tmp_path / "other.json")
    assert result.code == 0 and "exposed communication" in result.out
    assert autopar.Plan.load(tmp_path / "other.json").objective_s > autopar.Plan.load(path).objective_s
    assert cli("diff", path, tmp_path / "other.json").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--what-if", "luck=more"), "memory=+16GiB"),
        (("transformer.wte", "--what-if", "devices=2"), "leave out NAME"),
        (("-o", "x.json"), "--what-if"),
        (("no.such.module",), "the nearest are"),
    ],
)
def test_a_question_that_is_none_is_a_usage_error(cli, path, words, said):
    result = cli("explain", path, *words)
    assert result.code == 2 and said in result.err


def test_what_does_not_fit_any_more_is_infeasible(cli, path):
    assert cli("explain", path, "--what-if", "memory=1MB").code == 4


def test_a_plan_that_keeps_no_graph_is_a_mismatch(cli, saved):
    result = cli("explain", saved, "lm_head.weight")
    assert result.code == 6 and "make the plan again" in result.err


def test_equal_plans_do_the_same(cli, saved):
    assert cli("diff", saved, saved).out.startswith("The plans do the same.")


def test_a_difference_stands_in_the_table_and_in_the_document(cli, saved, tmp_path):
    example_plan(num_microbatches=16).save(tmp_path / "other.json")
    assert "num microbatches" in cli("diff", saved, tmp_path / "other.json").out
    document = cli("diff", saved, tmp_path / "other.json", "--json").document
    assert document["settings"] == [{"what": "num microbatches", "left": "4", "right": "16"}]


def test_a_simulated_step_stands_beside_the_plan(cli, path, tmp_path):
    result = cli("simulate", path, "--trace", tmp_path / "trace.json")
    assert result.code == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "M"}
    document = cli("simulate", path, "--json").document
    assert document["plan_sha256"] == autopar.Plan.load(path).sha256


def test_a_trace_that_cannot_be_written_is_said_before_the_work(cli, path, tmp_path):
    result = cli("simulate", path, "--trace", tmp_path / "none" / "trace.json")
    assert result.code == 2 and "--trace" in result.err
