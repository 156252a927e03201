"""What stands in place of an operator takes its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autopar.runtime.native import _NATIVE, native

aten = torch.ops.aten
X, Y = torch.randn(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
HEADS = torch.randn(2, 2, 4, 4, dtype=torch.float64)
# Everything that a node may give: positions, and keywords after the star of the schema.
CALLS: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    aten.add.Tensor: [((X, Y), {}), ((X, Y), {"alpha": 2}), ((X, 2.0), {})],
    aten.sub.Tensor: [((X, Y), {"alpha": 2})],
    aten.mul.Tensor: [((X, Y), {}), ((X, 2.0), {})],
    aten.div.Tensor: [((X, Y), {})],
    aten.div.Scalar: [((X, 2), {})],
    aten.neg.default: [((X,), {})],
    aten.pow.Tensor_Scalar: [((X, 2), {}), ((Y, 0.5), {})],
    aten.rsqrt.default: [((Y,), {})],
    aten.tanh.default: [((X,), {})],
    aten.sum.dim_IntList: [((X, [1], True), {}), ((X, [0, 1]), {"dtype": torch.float32})],
    aten.cat.default: [(([X, Y], 1), {}), (([X, Y],), {})],
    aten.reshape.default: [((X, [3, 2]), {})],
    aten.permute.default: [((X, [1, 0]), {})],
    aten.linear.default: [((X, Y), {}), ((X, Y, torch.ones(2, dtype=torch.float64)), {})],
    aten.matmul.default: [((X, Y.T), {})],
    aten.scaled_dot_product_attention.default: [
        ((HEADS, HEADS, HEADS, None, 0.0, True), {"scale": 0.5}),
        ((HEADS, HEADS, HEADS), {"enable_gqa": True}),
        ((HEADS, HEADS, HEADS, torch.ones(4, 4, dtype=torch.bool)), {}),
    ],
}


@pytest.mark.parametrize("operator", _NATIVE, ids=str)
def test_the_result_is_that_of_the_operator(operator: Any) -> None:
    for args, kwargs in CALLS[operator]:
        assert torch.equal(native(operator)(*args, **kwargs), operator(*args, **kwargs))


def test_what_has_none_is_called_as_it_is() -> None:
    assert native(aten.slice.Tensor) is aten.slice.Tensor
