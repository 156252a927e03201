"""The parts of a step's time."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from tests.families.family import causal_batch
from tests.models import llama


@pytest.mark.parametrize(
    "options",
    [{}, {"num_microbatches": 4}, {"num_microbatches": 2, "recompute": "full"}, {"optimizer": "sgd_momentum"},
     {"mixed_precision": "bf16", "num_microbatches": 2}],
    ids=str,
)  # fmt: skip
def test_one_device_communicates_nothing(options: dict[str, Any]) -> None:
    """What it does beside the model's operations, such as the optimizer's step, is computing."""
    parts = (made := autopar.plan(llama().float(), causal_batch(), cluster="1x1xA100-SXM-80GB", **options)).step_time_s
    assert parts.exposed_comm == parts.bubble == 0
    assert parts.compute == made.objective_s


def test_what_two_devices_send_is_exposed_and_the_optimizers_step_is_not() -> None:
    given: dict[str, Any] = {"cluster": "1x2xCPU", "mesh": {"dp": 2}, "zero": 1, "num_microbatches": 1}
    adamw, sgd = (autopar.plan(llama(), causal_batch(), optimizer=name, **given) for name in ("adam", "sgd"))
    assert 0 < adamw.step_time_s.exposed_comm == pytest.approx(sgd.step_time_s.exposed_comm, rel=1e-6)
    assert adamw.step_time_s.compute > sgd.step_time_s.compute
