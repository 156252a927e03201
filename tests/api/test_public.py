"""What users may import, and what a plan promises: the same bytes, read strictly, refused where it does not fit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import autopar
from autopar import Plan, errors
from autopar.api import check_fit
from tests.api.ranks import Net, example
from tests.models import bert, inputs
from tests.parity.processes import NETWORKS

PUBLIC = [
    "Cluster", "CostProfile", "ParallelModule", "Plan", "errors", "load", "nn", "parallelize", "plan", "register_rule",
    "replicate", "save", "split", "stage", "verify",
]  # fmt: skip
FAIR = str(NETWORKS / "fair.toml")
PLANNED_TWICE = """
import sys
from tests.api.test_public import digest
for _ in range(2):
    print(digest())
"""


def digest() -> str:
    """Of the bytes of a searched plan."""
    plan = autopar.plan(bert(), inputs("bert"), cluster="1x2xCPU", profile=FAIR)
    return hashlib.sha256(plan.to_bytes()).hexdigest()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return autopar.plan(Net(), example(), cluster="1x2xCPU")


def written(plan: Plan, path: Path, **changed: Any) -> Path:
    """The plan's file with other values at the top, its hash as it was."""
    path.write_text(json.dumps(plan.document() | changed))
    return path


def test_public_names_are_these():
    """At most fifteen, and a new one is a decision."""
    assert autopar.__all__ == PUBLIC
    assert len(PUBLIC) <= 15
    assert all(getattr(autopar, name) is not None for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(autopar))


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'strategies'"):
        _ = autopar.strategies


def test_every_error_has_a_class_and_an_exit_code_of_its_own_kind():
    """All derive from one base and carry the exit code of the command line."""
    kinds = [getattr(errors, name) for name in errors.__all__ if not name.endswith("Warning")]
    assert all(issubclass(kind, errors.AutoparError) for kind in kinds)
    assert {kind.exit_code for kind in kinds} == {1, 2, 3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize("statement", ["import autopar", "from autopar import errors", "from autopar import Plan"])
def test_importing_autopar_does_not_import_torch(statement):
    """torch takes seconds; a command line that shows a plan must not wait for it."""
    code = f"import sys; {statement}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow  # as tests/search/test_determinism.py does
def test_the_same_problem_gives_the_same_bytes():
    """Two runs in each of two processes that hash strings differently, and in this one."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PLANNED_TWICE], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        for seed in (1, 2)
    ]  # fmt: skip
    lines = [digest()]
    for process in processes:
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 0
        lines += out.splitlines()
    assert len(lines) == 5
    assert len(set(lines)) == 1


def test_a_saved_plan_is_read_back_equal(plan, tmp_path):
    """Also its bytes; the facts of the search are not in the file."""
    path = tmp_path / "plan.json"
    plan.save(path)
    read = Plan.load(path)
    assert (read.to_bytes(), read.sha256, read.search) == (plan.to_bytes(), plan.sha256, None)
    assert b"solve_s" not in path.read_bytes()


def test_an_unknown_key_is_refused_by_name(plan, tmp_path):
    with pytest.raises(errors.FileFormatError, match=r"plan\.json: shedule: Extra inputs") as caught:
        Plan.load(written(plan, tmp_path / "plan.json", shedule="1F1B"))
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(plan, tmp_path, number):
    with pytest.raises(errors.FileFormatError, match="is not a number that a plan may hold") as caught:
        Plan.load(written(plan, tmp_path / "plan.json", objective_s=number))
    assert caught.value.exit_code == 6


def test_a_changed_plan_is_refused_by_its_hash(plan, tmp_path):
    with pytest.raises(errors.MismatchError, match="the file was changed after it was written") as caught:
        Plan.load(written(plan, tmp_path / "plan.json", num_microbatches=4))
    assert caught.value.exit_code == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON document"),
        ("[" * 5000, "not a JSON document"),
        ("[]", "should be an object"),
        ("{}", "Field required"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(errors.FileFormatError, match=message):
        Plan.load(path)


def test_a_plan_fits_the_model_it_was_made_for(plan):
    check_fit(plan, Net(), example())


@pytest.mark.parametrize(
    ("net", "given", "difference"),
    [
        (Net(64), example(), r"parameter down\.weight: the plan was made for f32\[8,32\], the model has f32\[8,64\]"),
        (Net(name="out"), example(), r"parameter down\.bias: .* the model has none of that name"),
        (Net().double(), example(), r"parameter down\.bias: the plan was made for f32\[8\], the model has f64\[8\]"),
        (Net(), example(16), r"input x: the plan was made for f32\[8,16\], the model has f32\[16,16\]"),
    ],
    ids=["hidden size", "renamed", "dtype", "batch"],
)  # fmt: skip
def test_a_model_that_differs_is_refused_with_the_difference(plan, net, given, difference):
    given["x"] = given["x"].to(net.up.weight.dtype)
    with pytest.raises(errors.MismatchError, match=difference):
        check_fit(plan, net, given)


def test_a_model_that_computes_something_else_is_refused(plan):
    """Names and shapes agree, the graph does not."""

    class Other(Net):
        def forward(self, x, labels):
            return super().forward(-x, labels)

    with pytest.raises(errors.MismatchError, match="the model computes something else"):
        check_fit(plan, Other(), example())
