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
# (gradient of the result, argument) -> gradient of the argument.
BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda grad, x: _aten.silu_backward(grad, x),
    "gelu": lambda grad, x: _aten.gelu_backward(grad, x),
    "gelu_tanh": lambda grad, x: _aten.gelu_backward(grad, x, approximate="tanh"),
    "relu": lambda grad, x: _aten.threshold_backward(grad, x, 0),
    "relu2": lambda grad, x: grad * (2 * F.relu(x)),
    "sigmoid": lambda grad, x: _aten.sigmoid_backward(grad, torch.sigmoid(x)),
    "tanh": lambda grad, x: _aten.tanh_backward(grad, torch.tanh(x)),
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
        return forward(x), lambda grad: back(grad, x)
    g, u = gate.limited(x)
    scaled = gate.alpha * g if gate.alpha != 1 else g
    act = forward(scaled) / gate.alpha if gate.alpha != 1 else forward(g)

    def backward(grad: Tensor) -> Tensor:
        result = torch.empty_like(x)
        into_g, into_u = gate.parts(result)
        into_g.copy_(back(grad * u, scaled))
        torch.mul(grad, act, out=into_u)
        if gate.limit is not None:
            raw_g, raw_u = gate.parts(x)
            into_g.masked_fill_(raw_g > gate.limit, 0)
            into_u.masked_fill_(raw_u.abs() > gate.limit, 0)
        return result

    return act * u, backward
