"""Every family on four processes: what the simulated mesh says is what gloo does."""

from __future__ import annotations

import pytest

from tests.families import FAMILIES
from tests.families.ranks import trained
from tests.harness import run_processes

NAMES = [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_a_family_trains_on_four_processes_as_on_one(name: str) -> None:
    """dp 2 × tp 2, three steps of AdamW: losses, gradients, norm, parameters and buffers."""
    worst, *_ = run_processes(4, trained, name, timeout_s=240)
    assert 0 < worst <= FAMILIES[name].tolerance
