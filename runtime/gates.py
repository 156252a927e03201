"""The gates of experts on tensors, and their gradients without autograd: kernels of operators run below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.ir.gates import Gate

FORWARD: dict[str, Callable[[Any], Any]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
_aten = torch.ops.aten
# (gradient of the result, argument, where to write the gradient of the argument) -> that.
BACKWARD: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "silu": lambda grad, x, to: _aten.silu_backward.grad_input(grad, x, grad_input=to),
    "gelu": lambda grad, x, to: _aten.gelu_backward.grad_input(grad, x, grad_input=to),
    "gelu_tanh": lambda grad, x, to: _aten.gelu_backward.grad_input(grad, x, approximate="tanh", grad_input=to),
    "relu": lambda grad, x, to: _aten.threshold_backward.grad_input(grad, x, 0, grad_input=to),
    "relu2": lambda grad, x, to: torch.mul(grad, 2 * F.relu(x), out=to),
    "sigmoid": lambda grad, x, to: _aten.sigmoid_backward.grad_input(grad, torch.sigmoid(x), grad_input=to),
    "tanh": lambda grad, x, to: _aten.tanh_backward.grad_input(grad, torch.tanh(x), grad_input=to),
}


def gated(gate: Gate, x: Tensor) -> Tensor:
    """What the second projection of an expert reads, of what the first one gave."""
    result: Tensor = gate.apply(x, FORWARD)
    return result


def gate_backward(gate: Gate, x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of ``x``, of that of ``gated(gate, x)``."""
    return gated_and_backward(gate, x)[1](grad)


def gated_and_backward(gate: Gate, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """``gated(gate, x)``, and what makes the gradient of ``x`` of its gradient: both need the activation."""
    forward, back = FORWARD[gate.activation], BACKWARD[gate.activation]
    if not gate.glu:
        return forward(x), lambda grad: back(grad, x, torch.empty_like(x))
    g, u = gate.limited(x)
    scaled = gate.alpha * g if gate.alpha != 1 else g
    act = forward(scaled) / gate.alpha if gate.alpha != 1 else forward(g)

    def backward(grad: Tensor) -> Tensor:
        result = torch.empty_like(x)
        into_g, into_u = gate.parts(result)
        back(grad * u, scaled, into_g)
        torch.mul(grad, act, out=into_u)
        if gate.limit is not None:
            raw_g, raw_u = gate.parts(x)
            into_g.masked_fill_(raw_g > gate.limit, 0)
            into_u.masked_fill_(raw_u.abs() > gate.limit, 0)
        return result

    return act * u, backward
