"""``autopar validate``: schema, hash and fit."""

from __future__ import annotations

import json

import pytest

from autopar.ir.errors import MismatchError
from tests.cli.plans import example_plan

MODEL = ("zoo:gpt2", "--layers", 1, "--batch-size", 2, "--seq-len", 8)


def test_a_good_plan_is_valid(cli, saved):
    result = cli("validate", saved)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{saved}: valid, sha256 {example_plan().sha256[:16]}\n"


def test_with_a_model_the_api_compares_them(cli, api, saved):
    result = cli("validate", saved, *MODEL)
    assert (result.code, result.out.splitlines()[1]) == (0, f"{saved}: fits zoo:gpt2")
    ((name, (plan, model, inputs), _),) = api.calls
    assert (name, plan.sha256) == ("check_fit", example_plan().sha256)
    assert (len(model.transformer.h), tuple(inputs["input_ids"].shape)) == (1, (2, 8))


def test_a_plan_of_another_model_is_refused_with_the_difference(cli, api, saved):
    api.error = MismatchError("lm_head.weight is f32[8], the plan has f32[16]")
    result = cli("validate", saved, *MODEL)
    assert (result.code, result.out) == (6, "")
    assert result.err == "MismatchError: lm_head.weight is f32[8], the plan has f32[16]\n"


def test_json_says_what_was_checked(cli, api, saved):
    assert cli("validate", saved, *MODEL, "--json").document == {
        "plan": str(saved),
        "plan_sha256": example_plan().sha256,
        "valid": True,
        "model": "zoo:gpt2",
        "fits": True,
    }


def test_sizes_without_a_model_are_a_usage_error(cli, saved):
    result = cli("validate", saved, "--batch-size", 2)
    assert result.code == 2
    assert "--batch-size without a MODEL" in result.err


@pytest.mark.parametrize("command", ["show", "validate"])
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"model": "other"}, "MismatchError", "the file was changed after it was written"),
        ({"colour": 1}, "FileFormatError", "colour: Extra inputs are not permitted"),
        ({"gap": 2.0}, "FileFormatError", "gap: "),
        ({"mesh": None}, "FileFormatError", "mesh: "),
    ],
)
def test_a_changed_plan_is_refused(cli, saved, command, change, kind, message):
    saved.write_text(json.dumps(json.loads(saved.read_text()) | change))
    result = cli(command, saved)
    assert (result.code, result.out) == (6, "")
    assert result.err.startswith(f"{kind}: {saved}: ")
    assert message in result.err


@pytest.mark.parametrize("command", ["show", "validate"])
def test_a_cluster_that_is_none_is_refused(cli, tmp_path, command):
    path = tmp_path / "plan.json"
    plan = example_plan()
    plan.model_copy(update={"cluster": {"nodes": []}}).save(path)
    assert cli(command, path).code == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lower_bound_s": 1e6}, "lower_bound_s 1000000.0 is above objective_s"),
        ({"world_size": 5}, "devices, world_size is 5"),
        ({"axes": ("zz",)}, "axes ['zz'] are not those of mesh"),
        ({"zero": {"block0": 9}}, "zero of block0 is 9: levels are 0 to 3"),
        ({"placements": {"x": {"zz": "R"}}}, "placements of x name the axis zz, which mesh"),
        ({"schedule": "OTHER"}, "schedule"),
    ],
)
def test_a_plan_whose_parts_disagree_is_refused_though_its_hash_is_right(cli, tmp_path, change, message):
    path, plan = tmp_path / "plan.json", example_plan()
    if "schedule" in change:
        change = {"schedule": "1f1b" if plan.schedule is None else None}
    plan.model_copy(update=change).save(path)
    result = cli("validate", path)
    assert (result.code, result.out) == (6, "")
    assert message in result.err


def test_a_key_that_is_given_twice_is_refused(cli, saved):
    saved.write_text(saved.read_text().replace("{", '{"schema_version": 1,', 1))
    result = cli("validate", saved)
    assert result.code == 6
    assert "a key is given twice" in result.err


@pytest.mark.parametrize("command", ["show", "validate"])
def test_a_missing_file_is_a_file_error(cli, tmp_path, command):
    result = cli(command, tmp_path / "absent.json")
    assert result.code == 6
    assert "cannot be read: No such file or directory" in result.err


def test_what_is_not_json_is_a_file_error(cli, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("mesh: {}")
    assert cli("validate", path).code == 6
