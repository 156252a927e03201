"""Evaluation, loss scaling and restart with pipeline stages."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests import harness
from tests.loop import staged


@functools.cache
def launched() -> list[Any]:
    return harness.run_processes(2, staged.both)


@functools.cache
def expected() -> dict[str, Any]:
    return staged.expected()


def test_a_pipeline_evaluates_and_its_state_goes_on_elsewhere_and_back() -> None:
    """From {pp 2} to {dp 2} under ZeRO 3 and to {pp 2} again: the same state, the same losses from there."""
    for found, _ in launched():
        assert found["losses"] == pytest.approx(expected()["losses"], rel=1e-10)
        assert found["evaluated"] == pytest.approx(expected()["evaluated"], rel=1e-10)
        assert found["same"] == [True, True, True]
        assert found["more"] == [pytest.approx(expected()["more"], rel=1e-10)] * 3


def test_the_loss_is_scaled_in_stages_too() -> None:
    for _, found in launched():
        torch.testing.assert_close(found["loss"], expected()["loss"], rtol=3e-3, atol=0)
        assert list(found["gradients"]) == list(expected()["gradients"])
        for name, wanted in expected()["gradients"].items():
            assert float((found["gradients"][name] - wanted).abs().max() / wanted.abs().max()) < 4e-3
