"""Calibration runs on this machine, in processes that work at once."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

import pytest
import torch

from autopar.calibrating import measure, timing
from autopar.calibrating.measure import Measured
from autopar.calibrating.probes import MOVED
from autopar.ir.errors import ProbeError
from tests import harness

calibrating = importlib.import_module("autopar.calibrating.calibrate")

SMALL = {"PRODUCTS": (32, 2, 64), "ROWS": (32, 2, 64), "NUMELS": {"cpu": (2**14, 2, 2**15)},
         "COPIED_BYTES": {"cpu": 2**20}, "PAYLOAD_BYTES": {"cpu": (2**10, 4, 2**12)}}  # fmt: skip


def measured() -> list[Any]:
    """In each process, at small sizes: what rank 0 tells."""
    said: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(measure, name, value)
        patch.setattr(timing, "LEAST_S", 1e-4)
        measure.run(torch.distributed.get_rank(), lambda what: said.append(_plain(what)), "cpu")
    return said


def failing() -> list[str]:
    """What each process tells where an operation fails in the second."""
    def broken(*sizes: object) -> object:
        if torch.distributed.get_rank():
            raise RuntimeError("out of memory\nand more")
        return lambda: None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "copied", broken)
        said: list[object] = []
        measure.run(torch.distributed.get_rank(), said.append, "cpu")
    return [str(what) for what in said if isinstance(what, ProbeError)]


def _plain(what: object) -> object:
    return vars(what) if isinstance(what, Measured) else what


def test_everything_is_measured_by_processes_at_once() -> None:
    first, second = harness.run_processes(2, measured)
    assert second == []
    *steps, found = first
    assert steps[0] == "copies"
    assert steps[-4:] == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    assert found["processes"] == 2
    assert set(found["flops_s"]) == {"f64", "f32", "bf16", "f16"}
    assert list(found["flops_s"]["f32"]) == [2 * 32**3, 2 * 64**3]
    assert set(found["seconds"]) == set(MOVED)
    assert all(len(points) == 2 for points in found["seconds"].values())
    assert set(found["collective_s"]["all_to_all"]) == {2**10, 2**12}
    points = [*found["seconds"].values(), *found["collective_s"].values(), *found["flops_s"].values()]
    assert all(value > 0 for each in points for value in each.values())


def test_traffic_is_what_the_cost_model_counts() -> None:
    """Of x * y: both and the result forward; the table holds the mean of forward and backward."""
    probe = MOVED["aten.mul.Tensor"](2**14, torch.float32, torch.device("cpu"))
    forward = 3 * 2**14 * 4
    assert probe.work().passes == 2
    assert probe.work().bytes == forward * 3
    probe.step()()


def test_a_device_that_fails_is_told_of() -> None:
    first, second = harness.run_processes(2, failing)
    assert second == ["the measurement failed on cpu in process 1: out of memory"]
    assert len(first) == 1  # it lost the other


def test_a_process_that_is_killed_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "run", killed)
    with pytest.raises(ProbeError, match="ended with SIGKILL, often for want of memory"):
        calibrating.calibrate("cpu", 1)


def killed(rank: int, say: object, kind: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
