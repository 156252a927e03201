"""A GPU's seconds apart from its host's, on a GPU that is imagined: a queue and two clocks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autopar.calibrating import timing

GPU = torch.device("cuda", 0)


class Imagined:
    """``host_s``: now; ``free_s``: when the GPU has done all that it was given."""

    def __init__(self) -> None:
        self.host_s = self.free_s = 0.0

    def kernel(self, starts_s: float, takes_s: float) -> Callable[[], None]:
        def call() -> None:
            self.host_s += starts_s
            self.free_s = max(self.free_s, self.host_s) + takes_s

        return call

    def wait(self, *_: object) -> None:
        self.host_s = max(self.host_s, self.free_s)

    def event(self, **_: object) -> Any:
        made = SimpleNamespace(at=0.0, synchronize=self.wait)
        made.record = lambda: setattr(made, "at", max(self.free_s, self.host_s))
        made.elapsed_time = lambda last: 1e3 * (last.at - made.at)
        return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Imagined:
    made = Imagined()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.wait)
    monkeypatch.setattr("time.perf_counter", lambda: made.host_s)
    monkeypatch.setattr(timing, "_ahead", lambda device: made.kernel(5e-6, 1.5e-3))
    return made


@pytest.mark.parametrize("takes_s", [2e-6, 4e-5, 1e-3, 0.2])
def test_what_the_host_takes_is_not_the_gpus(gpu: Imagined, takes_s: float) -> None:
    assert timing.seconds_of(gpu.kernel(4e-5, takes_s), GPU) == pytest.approx(takes_s, rel=1e-6)


def test_a_call_that_waits_for_the_gpu_takes_its_hosts_time_too(gpu: Imagined) -> None:
    kernel = gpu.kernel(4e-5, 1e-5)

    def call() -> None:
        kernel()
        gpu.wait()

    assert timing.seconds_of(call, GPU) > 4e-5
