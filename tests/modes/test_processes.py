"""Training and evaluation are two programs of one plan, on gloo processes and beside one device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests import harness
from tests.modes import processes
from tests.modes.processes import Case

TWO = [
    Case(name="gpt2", mesh={"tp": 2}),
    Case(name="gpt2 without dropout", mesh={"dp": 2}, options={"zero": 3}), Case(name="batch norm", mesh={"dp": 2}),
    Case(name="scaled", mesh={"dp": 2}, options={"zero": 3}),
]  # fmt: skip
SLOW = [
    *(Case(name=name, mesh=mesh) for name in ("resnet", "bert") for mesh in ({"dp": 2}, {"tp": 2})),
    Case(name="bert", mesh={"dp": 2}, options={"num_microbatches": 2, "zero": 3, "recompute": "full"}),
    Case(name="bert", mesh={"tp": 2}, options={"num_microbatches": 2}), Case(name="gpt2", mesh={"dp": 2}),
    Case(name="batch norm", mesh={"tp": 2}), Case(name="depth", mesh={"dp": 2}, options={"zero": 3}),
    Case(name="scaled", mesh={"dp": 2}, options={"zero": 0}), Case(name="depth", mesh={"tp": 2}),
    Case(name="gpt2", mesh={"dp": 2}, options={"num_microbatches": 2, "zero": 3}),
]  # fmt: skip
FOUR = [
    *(
        Case(name=name, mesh={"dp": 2, "tp": 2}, options={"num_microbatches": count})
        for name in ("gpt2", "bert") for count in (1, 2)
    ),
    Case(name="gpt2", mesh={"dp": 2, "tp": 2}, options={"zero": 3}),
    Case(name="gpt2", mesh={"dp": 4}, options={"zero": 3, "num_microbatches": 2, "cluster": "2x2xCPU@10Gb/s"}),
    *(Case(name=name, mesh={"dp": 2, "tp": 2}) for name in ("batch norm", "resnet", "depth")),
]  # fmt: skip
LAUNCHES = {"two": (2, TWO), "slow": (2, SLOW), "four": (4, FOUR)}


@functools.cache
def launched(launch: str) -> list[list[Any]]:
    """Results by rank and case: the cases of a launch share its processes."""
    size, cases = LAUNCHES[launch]
    work: list[harness.Work] = [(processes.run, (case,)) for case in cases]
    if launch == "two":
        work += [(processes.drawn, ({"dp": 2},)), (processes.from_evaluation, ("gpt2", {"tp": 2}))]
        work += [(processes.from_evaluation, ("batch norm", {"dp": 2})), (processes.refusals, ())]
    return harness.run_processes(size, harness.each, work, timeout_s=300)


@pytest.mark.parametrize(
    ("launch", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case}", marks=[pytest.mark.slow] * (name != "two"))
        for name, (_, cases) in LAUNCHES.items() for case in cases
    ],
)  # fmt: skip
def test_evaluation_is_that_of_one_device(launch: str, case: Case) -> None:
    """Losses, outputs and gradients in evaluation mode were compared with the model's; training goes on undisturbed."""
    for by_case in launched(launch):
        found = by_case[LAUNCHES[launch][1].index(case)]
        assert found["kind"] and found["no graph"] and found["state"] and found["meta"]
        assert [float(loss) for loss in found["losses"]] == [float(loss) for loss in found["alone"]]
        assert found["shared"] == (case.name == "gpt2 without dropout")
        assert found["differentiable"] == (case.name != "scaled")  # its layers are calls of a block in training only


def test_evaluation_draws_from_a_sequence_of_its_own() -> None:
    """What the model draws in evaluation too is drawn anew each time, and training draws as if it had not been."""
    for by_case in launched("two"):
        found = by_case[len(TWO)]
        assert float(found["evaluated"][0]) != float(found["evaluated"][1])
        assert found["losses"] == found["alone"]


@pytest.mark.parametrize("at", [1, 2])
def test_a_plan_made_in_evaluation_mode_trains_after_train(at: int) -> None:
    """Dropout draws and running statistics move as with a plan made in training mode."""
    for by_case in launched("two"):
        found = by_case[len(TWO) + at]
        first, second = found["losses"]
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)
        assert abs(float(found["first"] - second[0])) > 1e-3
        torch.testing.assert_close(*found["states"], rtol=1e-9, atol=1e-11)


def test_a_mode_that_cannot_be_had_is_refused_and_training_goes_on() -> None:
    for rank, by_case in enumerate(launched("two")):
        found = by_case[-1]
        mode = "training" if rank == 0 else "evaluation"
        assert found["modes differ"] == (
            f"rank {rank} runs forward in {mode} mode, another rank something else; all run the same"
        )
        assert "TypeError: cannot pickle a lock" in found["not copied"]
        assert "program in evaluation mode cannot be made" in found["not copied"]
        assert "is gathered with other parameters than in the plan's own mode" in found["forward only"]
        assert found["loss has a graph"] == "False"
