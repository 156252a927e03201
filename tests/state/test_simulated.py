"""Whatever a model does to its parameters and buffers, and however it is called: one device does the same."""

from __future__ import annotations

import pytest

from tests.state.networks import CASES, made
from tests.state.simulated import difference, planned, simulated


@pytest.mark.parametrize("mesh", ["dp=2", "tp=2", "dp=2,tp=2"])
@pytest.mark.parametrize("name", CASES)
def test_a_step_leaves_behind_what_it_leaves_on_one_device(name: str, mesh: str) -> None:
    """Loss, outputs, gradients, and buffers that the forward changes."""
    model, inputs = made(name)
    found = planned(model, inputs, mesh)
    got = simulated(found, model, inputs)
    assert difference(got, found.readied.traced.loss_output, model, inputs) <= 1e-10
    assert not found.plan.islands
