"""HSDP from a cluster's description to training: two nodes of two devices, and a network that is worth sparing."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from autopar.runtime.parity import compare
from tests import harness
from tests.loop import restarts
from tests.parity import processes
from tests.parity.processes import ACCUMULATED, Case

NODES = {"cluster": "2x2xCPU@10Gb/s"}
DP4 = {"dp": 4}
CASES = [
    Case(model="gpt2", mesh=DP4, options={**NODES, "zero": 3, "num_microbatches": 2, "recompute": "full"}),
    Case(model="gpt2", mesh=DP4, options={**NODES, "zero": 2, "num_microbatches": 2, "recompute": "selective"}),
    Case(model="gpt2", mesh=DP4, options={**NODES, "zero": 3, "num_microbatches": 1}),
    Case(model="bert frozen", mesh=DP4, options={**NODES, "zero": 3, "num_microbatches": 2}),
]
RUN = {**NODES, "zero": 3, "num_microbatches": 2}
SAVED = restarts.Case(name="tied", mesh=DP4, options=RUN)
WHOLE = restarts.Case(name="tied", mesh={"dp": 2}, options={"zero": 3, "num_microbatches": 2})


@functools.cache
def two() -> dict[str, Any]:
    return harness.run_processes(2, harness.each, [(restarts.saved, (WHOLE,))])[0][0]  # type: ignore[no-any-return]


@functools.cache
def four() -> list[list[Any]]:
    """Results by rank of a run that is saved and one that goes on."""
    work: list[Any] = [(restarts.saved, (SAVED,)), (restarts.resumed, (SAVED, restarts.as_bytes(two())))]
    return harness.run_processes(4, harness.each, work, timeout_s=280)


@functools.cache
def trained() -> list[list[Any]]:
    return harness.run_processes(4, harness.each, [(processes.train, (case,)) for case in CASES], timeout_s=280)


def found_by_rank(case: Case) -> list[Any]:
    at = CASES.index(case)
    return [found[at] for found in trained()]


each_case = pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=pytest.mark.slow) for case in CASES]
)


@each_case
def test_training_is_that_of_one_device(case: Case) -> None:
    """Losses, gradients after two accumulated steps, clipped norm, parameters after training, the plain forward's."""
    wanted = processes.expected(Case(model=case.model, mesh=None))
    for found in found_by_rank(case):
        for at, (loss, single) in enumerate(zip(found["losses"], wanted["losses"], strict=True)):
            compare({"loss": loss}, {"loss": single}, tol=1e-10, what=f"loss of step {at // ACCUMULATED}")
        for what in ("gradients", "state"):
            compare(found[what], wanted[what], tol=1e-10, what=what)
        compare({"norm": found["norm"]}, {"norm": wanted["norm"]}, tol=1e-10, what="norm")
        compare(found["forward"]["gradients"], wanted["forward"]["gradients"], tol=1e-10, what="plain forward")


@each_case
def test_what_a_device_keeps_is_what_the_plan_says(case: Case) -> None:
    """Halves of what is cut inside nodes, quarters of what is cut over all; bytes as in the plan's memory."""
    for found in found_by_rank(case):
        assert any(inside == {"dp": 2} for inside in found["hsdp"].values()), "nothing to test"
        kept = sum(8 * mine for mine, _ in found["kept"].values())
        assert kept == pytest.approx(found["planned parameter bytes"], rel=0.02)


@pytest.mark.slow
def test_a_run_under_hsdp_goes_on_on_one_device_and_the_other_way_round() -> None:
    """Whole states of parameters, optimizer and run; bit by bit what was saved, and the same training afterwards."""
    saved, resumed = four()[0]
    on_one = restarts.alone(restarts.Case(name="tied", mesh={}), restarts.as_bytes(saved))
    assert on_one["losses"] == pytest.approx(saved["losses"], rel=1e-10)
    compare(on_one["end"], saved["end"], tol=1e-10, what="parameters")
    for name, tensor in two()["state"].items():
        assert torch.equal(resumed["state"][name], tensor), name
    for name, values in two()["optimizer"]["state"].items():
        assert all(torch.equal(resumed["optimizer"]["state"][name][key], v) for key, v in values.items()), name
    assert resumed["losses"] == pytest.approx(two()["losses"], rel=1e-10)
    compare(resumed["end"], two()["end"], tol=1e-10, what="parameters")
