"""Models with linear attention train on two axes as on one device, batches and heads of it divided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.families.measure import measure
from tests.linear.models import MODELS, linear

# Kimi's gradient of its decay is a millionth of its terms, which are of float32: with the rule in float64 4e-7.
TOLERANCES = {"KimiLinear": 1e-5}


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_on_two_axes(name: str) -> None:
    """Loss, gradients and parameters; the products, the delta rule's among them, are divided on both axes."""
    family = linear(name)
    (cell,) = measure(replace(family, tolerance=TOLERANCES.get(name, family.tolerance)), ({"dp": 2, "tp": 2},)).cells
    assert cell.passed, cell.reason
    assert cell.split > 0.999  # 5.17 turns rotary angles into products that every device does
    assert cell.islands == ()
