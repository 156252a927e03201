"""What stands in place of an operator takes its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autopar.runtime.native import _NATIVE, _own_state, native

aten = torch.ops.aten
X, Y = torch.randn(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
HEADS = torch.randn(2, 2, 4, 4, dtype=torch.float64)
STEPS = torch.randn(2, 5, 3, dtype=torch.float64)
STATE = torch.zeros((), dtype=torch.float64).expand(1, 2, 4)
HOW = (True, 1, 0.0, True, False, True)  # of recurrent layers


def weights(gates: int) -> list[torch.Tensor]:
    """Of a recurrent layer of width 4."""
    torch.manual_seed(0)
    return [torch.randn(4 * gates, *width, dtype=torch.float64) for width in ((3,), (4,), (), ())]


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
    aten.lstm.input: [((STEPS, [STATE, STATE], weights(4), *HOW), {})],
    aten.gru.input: [((STEPS, STATE, weights(3), *HOW), {})],
    aten.rnn_tanh.input: [((STEPS, STATE, weights(1), *HOW), {})],
    aten.rnn_relu.input: [((STEPS, STATE, weights(1), *HOW), {})],
    aten.scaled_dot_product_attention.default: [
        ((HEADS, HEADS, HEADS, None, 0.0, True), {"scale": 0.5}),
        ((HEADS, HEADS, HEADS), {"enable_gqa": True}),
        ((HEADS, HEADS, HEADS, torch.ones(4, 4, dtype=torch.bool)), {}),
    ],
}


@pytest.mark.parametrize("operator", _NATIVE, ids=str)
def test_the_result_is_that_of_the_operator(operator: Any) -> None:
    for args, kwargs in CALLS[operator]:
        torch.testing.assert_close(native(operator)(*args, **kwargs), operator(*args, **kwargs), rtol=0, atol=0)


@pytest.mark.parametrize("several", [True, False])
def test_a_recurrent_layer_is_given_a_state_of_its_own_memory(several: bool) -> None:
    """Zeros are one number, seen many times, which kernels of a GPU do not take."""
    seen: list[torch.Tensor] = []

    def layer(x: torch.Tensor, state: Any, *rest: Any) -> None:
        seen.extend(state if isinstance(state, list) else [state])

    assert not STATE.is_contiguous()
    _own_state(layer)(STEPS, [STATE, STATE] if several else STATE, weights(1), *HOW)
    assert len(seen) == 1 + several
    assert all(torch.equal(each, STATE) and each.is_contiguous() for each in seen)


def test_what_has_none_is_called_as_it_is() -> None:
    assert native(aten.slice.Tensor) is aten.slice.Tensor
