"""Functions of torch's own Python interface in place of operators, where they take the same arguments.

An operator is looked up by its schema on every call, which takes a microsecond or two longer: a step of short
operations waits for it. Recurrent layers are among them, so that all devices take their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_aten = torch.ops.aten
_RECURRENT = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)


def _own_state(function: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent layer whose first state may be a view of one number, as zeros are: cuDNN takes none."""
    def call(x: Tensor, state: Tensor | list[Tensor], *rest: Any) -> Any:
        own = state.contiguous() if isinstance(state, Tensor) else [each.contiguous() for each in state]
        return function(x, own, *rest)

    call.__name__ = str(function).replace(".", "_")  # what fx prints
    return call


_NATIVE: dict[Callable[..., Any], Callable[..., Any]] = {
    _aten.add.Tensor: torch.add, _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul, _aten.div.Tensor: torch.div, _aten.div.Scalar: torch.div, _aten.neg.default: torch.neg,
    _aten.pow.Tensor_Scalar: torch.pow, _aten.rsqrt.default: torch.rsqrt, _aten.tanh.default: torch.tanh,
    _aten.sum.dim_IntList: torch.sum, _aten.cat.default: torch.cat,
    _aten.reshape.default: torch.reshape, _aten.permute.default: torch.permute,
    _aten.linear.default: F.linear, _aten.matmul.default: torch.matmul,
    _aten.scaled_dot_product_attention.default: F.scaled_dot_product_attention,
    **{layer: _own_state(layer) for layer in _RECURRENT},
}  # fmt: skip


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, as fast as torch has it and on every device."""
    return _NATIVE.get(function, function)
