"""A checkpoint that was saved at one layout is gone on from at every other, as if the run had never stopped."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest

from autopar.runtime.parity import compare
from tests import harness
from tests.checkpoints import runs
from tests.checkpoints.runs import Case

FULL = {"zero": 3}
# One run each: where it is saved, and where it goes on.
RUNS: dict[str, tuple[Case, tuple[Case, ...]]] = {
    str(first): (first, rest)
    for first, *others in (
        (Case(name="tied", mesh={"dp": 2}, options=FULL), Case(name="tied", mesh={"pp": 2, "tp": 2}),
         Case(name="tied", mesh={"dp": 1})),
        (Case(name="tied", mesh={"pp": 2, "dp": 2}, options={"zero": 1}), Case(name="tied", mesh={"tp": 2}),
         Case(name="tied", mesh={"pp": 2}), Case(name="tied", mesh={"dp": 2, "tp": 2}, options=FULL)),
        (Case(name="batch norm 2d", mesh={"dp": 2, "tp": 2}, options=FULL), Case(name="batch norm 2d", mesh={"dp": 4})),
        (Case(name="narrow", mesh={"dp": 2, "tp": 2}, options=FULL), Case(name="narrow", mesh={"tp": 2})),
        (Case(name="narrow", mesh={"dp": 1}), Case(name="narrow", mesh={"dp": 2, "tp": 2}, options=FULL)),
        (Case(name="scaled", mesh={"pp": 2, "dp": 2}), Case(name="scaled", mesh={"dp": 2}, options=FULL)),
        (Case(name="dropout", mesh={"tp": 2}), Case(name="dropout", mesh={"dp": 2, "tp": 2}, options=FULL)),
        (Case(name="never used", mesh={"dp": 1}), Case(name="never used", mesh={"dp": 2}, options=FULL)),
        (Case(name="mixtral", mesh={"ep": 2, "dp": 2}, options=FULL), Case(name="mixtral", mesh={"ep": 2, "tp": 2}),
         Case(name="mixtral", mesh={"tp": 2})),
        (Case(name="averages", mesh={"dp": 2}), Case(name="averages", mesh={"dp": 1})),
        *((Case(name="batch norm 1d", mesh={"dp": 2}, options=FULL, optimizer=kind),
           Case(name="batch norm 1d", mesh={"tp": 2}, optimizer=kind))
          for kind in runs.OPTIMIZERS if kind != "adam"),
    )
    for rest in [tuple(others)]
}  # fmt: skip
# What the others hold already, in another way.
SLOW_NAMES = ("scaled", "dropout", "never used", "averages", "batch norm 2d")
SLOW_OPTIMIZERS = ("sgd", "momentum", "adagrad")
SLOW = [
    run for run, (first, _) in RUNS.items()
    if first.name in SLOW_NAMES or first.optimizer in SLOW_OPTIMIZERS or first.mesh in ({"dp": 1}, {"pp": 2, "dp": 2})
]  # fmt: skip
TOLERANCE = {"mixtral": 1e-6}  # it casts to float32 inside


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def path(run: str) -> str:
    return str(Path(folder().name) / run)


def world(case: Case) -> int:
    return math.prod(case.mesh.values())


def saved(run: str) -> list[dict[str, Any]]:
    """What the run saved, by rank."""
    return _saved(run in SLOW)[run]


def resumed(run: str, case: Case) -> list[dict[str, Any]]:
    saved(run)
    return _resumed(run in SLOW)[f"{run}->{case}"]


def _runs(slow: bool) -> list[str]:
    return [run for run in RUNS if (run in SLOW) == slow]


@functools.cache
def _saved(slow: bool) -> dict[str, list[dict[str, Any]]]:
    """Of all slow or all quick runs: those of as many processes share them."""
    return _shared([(run, RUNS[run][0], runs.saved) for run in _runs(slow)])


@functools.cache
def _resumed(slow: bool) -> dict[str, list[dict[str, Any]]]:
    return _shared([
        (f"{run}->{case}", case, runs.resumed) for run in _runs(slow) for case in RUNS[run][1]
    ])  # fmt: skip


def _shared(work: list[tuple[str, Case, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for size in sorted({world(case) for _, case, _ in work}):
        mine = [each for each in work if world(each[1]) == size]
        tasks = [(function, (case, path(key.split("->")[0]))) for key, case, function in mine]
        by_rank = harness.run_processes(size, harness.each, tasks, timeout_s=240)
        for at, (key, _, _) in enumerate(mine):
            found[key] = [results[at] for results in by_rank]
    return found


@pytest.mark.parametrize(
    ("run", "case"),
    [
        pytest.param(run, case, id=f"{run}->{case}", marks=[pytest.mark.slow] * (run in SLOW))
        for run, (_, rest) in RUNS.items() for case in rest
    ],
)  # fmt: skip
def test_a_run_goes_on_at_another_layout(run: str, case: Case) -> None:
    """What is loaded is what was saved, bit by bit; losses and parameters afterwards are those of the unbroken run."""
    wanted, tolerance = saved(run)[0], TOLERANCE.get(case.name, 1e-10)
    for found in resumed(run, case):
        for what in ("model", "optimizer", "run"):
            assert runs.same(found[what], wanted[what]), what
        assert runs.same(found["extra"], runs.EXTRA)
        assert found["losses"] == pytest.approx(wanted["losses"], rel=tolerance)
        compare(found["end"], wanted["end"], tol=tolerance, what="parameters")


def test_parameters_that_are_cut_twice_and_unevenly_are_among_them() -> None:
    assert [run for run in _runs(slow=False) if saved(run)[0]["odd"]]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, marks=[pytest.mark.slow] * (run in SLOW))
        for run, (case, _) in RUNS.items() if case.name in ("tied", "averages", "mixtral")
    ],
)  # fmt: skip
def test_the_original_model_goes_on_with_torchs_own_functions(run: str, tmp_path: Path) -> None:
    case, wanted = RUNS[run][0], saved(run)[0]
    found = runs.alone(case, path(run), tmp_path)
    tolerance = TOLERANCE.get(case.name, 1e-10)
    assert found["losses"] == pytest.approx(wanted["losses"], rel=tolerance)
    compare(found["end"], wanted["end"], tol=tolerance, what="parameters")


def test_what_torchs_own_functions_saved_is_loaded(tmp_path: Path) -> None:
    case = Case(name="batch norm 1d", mesh={"dp": 2}, options=FULL)
    wanted = runs.by_torch(case, str(tmp_path / "one"))
    for found in harness.run_processes(2, runs.resumed, case, str(tmp_path / "one")):
        assert found["extra"] is None
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-10)
        compare(found["end"], wanted["end"], tol=1e-10, what="parameters")
