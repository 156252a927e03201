"""A plan's layouts on a smaller mesh."""

from __future__ import annotations

import pytest

from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.passes.transfer import smaller

WHOLE = Mesh((("dp", 8), ("tp", 4)))
SMALL = Mesh((("dp", 2), ("tp", 2)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp:S(0), tp:S(1)", "dp:S(0), tp:S(1)"),
        ("dp:S(0), tp:S(0)", "dp:S(0), tp:S(0)"),
        ("dp:S(0)/4, tp:S(0)/1", "dp:S(0)/2, tp:S(0)/1"),
        ("dp:R, tp:S(1)/3", "dp:R, tp:S(1)/3"),
        ("dp:R*, tp:P(sum)", "dp:R*, tp:P(sum)"),
    ],
)
def test_factors_keep_their_order(text: str, expected: str) -> None:
    assert smaller(Layout.parse(text, WHOLE), SMALL) == Layout.parse(expected, SMALL)


def test_an_axis_of_one_device_holds_everything() -> None:
    found = smaller(Layout.parse("dp:S(0), tp:S(0)", WHOLE), Mesh((("dp", 2), ("tp", 1))))
    assert found.text() == "dp:S(0), tp:R"
