"""Programs on gloo processes train as the model does on one device: loss, gradients, norm, parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autopar.runtime.parity import compare
from tests.harness import run_processes
from tests.runtime import trained
from tests.runtime.programs import Model

TWO: list[dict[str, Any]] = [
    {"tp": 2},
    {"tp": 2, "microbatches": 4, "recompute": "full"},
    {"dp": 2},
    {"dp": 2, "zero": 3},
    {"dp": 2, "microbatches": 2},
    {"dp": 2, "zero": 3, "microbatches": 2, "recompute": "full"},
    {"dp": 2, "zero": 1, "microbatches": 2},
    {"dp": 2, "zero": 2, "microbatches": 2, "recompute": "full"},
    {"tp": 2, "microbatches": 2, "recompute": "selective"},
    {"dp": 2, "zero": 3, "root_zero": 0},
    {"dp": 2, "zero": 0, "root_zero": 3},
]
FOUR: list[dict[str, Any]] = [
    {"dp": 2, "tp": 2},
    {"dp": 2, "tp": 2, "zero": 3},
    {"dp": 2, "tp": 2, "zero": 3, "microbatches": 2, "recompute": "full"},
    {"dp": 2, "tp": 2, "zero": 2, "microbatches": 2},
    {"dp": 2, "tp": 2, "zero": 1, "microbatches": 2, "recompute": "selective"},
    {"dp": 4, "zero": 1, "microbatches": 2},
    {"dp": 4, "zero": 3},
    {"dp": 2, "cp": 2, "zero": 3},
    {"dp": 2, "cp": 2, "zero": 0, "microbatches": 2},
    {"dp": 2, "tp": 2, "graph_owned": True, "microbatches": 2},
    {"dp": 2, "tp": 2, "graph_owned": True, "zero": 3},
]


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    first, wanted = found["first"], expected["first"]
    for scalar in ("loss", "norm", "h"):
        if scalar in first:
            compare({scalar: first[scalar]}, {scalar: wanted[scalar]}, tol=1e-10, what=scalar)
    compare(first["gradients"], wanted["gradients"], tol=1e-10, what="gradients")
    if "state" in found:
        compare(found["state"], expected["state"], tol=1e-10, what="parameters after training")


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return trained.expected()


@pytest.mark.parametrize(
    ("world_size", "cases"), [(2, TWO), pytest.param(4, FOUR, marks=pytest.mark.slow)], ids=["two", "four"]
)
def test_training_equals_one_device(
    world_size: int, cases: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    """Every rank ends with the loss, gradients, norm and parameters of the single-device run."""
    for by_case in run_processes(world_size, trained.run_all, trained.train, cases, timeout_s=200):
        for case, found in zip(cases, by_case, strict=True):
            try:
                check(found, expected)
            except Exception as error:
                raise AssertionError(f"{case}: {error}") from error


def test_forward_returns_the_whole_loss_and_its_backward_whole_gradients(expected: dict[str, Any]) -> None:
    """Also over several microbatches and with sharded parameters."""
    cases = [{"dp": 2}, {"tp": 2, "microbatches": 2}, {"dp": 2, "zero": 3, "microbatches": 2}]
    for by_case in run_processes(2, trained.run_all, trained.forward, cases):
        for found in by_case:
            check(found, expected)


@pytest.mark.slow
def test_compiled_blocks_train_alike(expected: dict[str, Any]) -> None:
    """torch.compile of each distinct block, its collectives traced with it."""
    cases = [{"tp": 2}, {"dp": 2, "zero": 3, "recompute": "full"}]
    for by_case in run_processes(2, trained.run_all, trained.train, cases, {"compile": True}, timeout_s=280):
        for found in by_case:
            check(found, expected)


def test_parameters_are_kept_wide_and_used_narrow(expected: dict[str, Any]) -> None:
    """Stored as float64, computed with as float32, reduced as float64, with and without FSDP2."""
    cases = [{"dp": 2, "zero": 3, "compute": "f32"}, {"dp": 2, "compute": "f32"}, {"tp": 2, "compute": "f32"}]
    for by_case in run_processes(2, trained.run_all, trained.train, cases):
        for found in by_case:
            assert {tensor.dtype for tensor in found["first"]["gradients"].values()} == {torch.float64}
            compare(found["first"]["gradients"], expected["first"]["gradients"], tol=1e-4, what="gradients")


def test_what_the_optimizer_holds_is_what_the_blocks_use() -> None:
    """Names, ties, types of values and gradients, refusals, and the rank's place in the batch."""
    for rank, report in enumerate(run_processes(2, trained.inspect, {"dp": 2, "zero": 3})):
        assert report["names"] == [name for name, _ in Model().named_parameters()]
        assert report["state"] == list(Model().state_dict())
        assert (
            report["same objects"] and report["tied"] and report["dtensors"] and report["all have gradients"]
        )
        assert report["place"] == (rank, 2)
        assert report["accumulated"] == pytest.approx(2.0)
        assert report["clipped"] == pytest.approx(0.5)
        assert report["shape"] == (
            "input ids: expected i64[4,4] (this rank's part of i64[8,4]), given i64[8,4]"
        )
        assert report["dtype"].startswith("input labels: expected i64[4,4]")
        assert report["missing"] == "input labels is missing; the inputs are ids, labels"
        assert report["unknown"] == "mask is not an input; the inputs are ids, labels"
        assert "the program needs mesh axis dp=2" in report["mesh"]
