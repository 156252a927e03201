"""Weights are on a device once: those of the model that was given go with it."""

from __future__ import annotations

from tests import harness
from tests.api.released import left


def test_nothing_of_the_trace_keeps_the_models_weights() -> None:
    kept, every = harness.run_processes(1, left)[0]
    assert kept == 0 < every
