"""``autopar.verify`` carries a plan with an exchange over to processes here."""

from __future__ import annotations

import pytest

import autopar
from tests.families import FAMILIES
from tests.families.measure import PROFILE


@pytest.mark.slow
def test_a_plan_with_an_exchange_is_verified() -> None:
    """Every operation stands as in the plan; one device computes in float64 too, which transformers' default cannot."""
    family = FAMILIES["mixtral"]
    model, batch = family.build(), family.batch()
    model.config._experts_implementation = "grouped_mm"  # type: ignore[union-attr]
    plan = autopar.plan(model, batch, cluster="1x4xCPU", mesh={"dp": 2, "ep": 2}, profile=PROFILE)
    found = autopar.verify(model, batch, plan)
    assert found.placed == found.operations
    assert found.worst <= found.tolerance
