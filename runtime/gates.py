"""The gates of experts on tensors, and their gradients without autograd: kernels of operators run below it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.ir.formulas import Formula, Steps
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


@dataclass(frozen=True, eq=False)
class Gated:
    """A gate and, of each token, which columns it leaves (``kept`` [T, I]; None: all), times ``factor``."""

    gate: Gate | Formula
    kept: Tensor | None = None
    factor: float = 1.0

    def forward(self, x: Tensor, token: Tensor | None) -> Tensor:
        """What the second projection of an expert reads, of what the first one gave.

        ``token`` [n]: whose the rows of ``x`` are; None: the last but one of its dims has all, in order. It is not read
        where the gate leaves all. What is given is new.
        """
        made = gated(self.gate, x)
        return made if self.kept is None else made * self._factors(token, made)

    def and_backward(self, x: Tensor, token: Tensor | None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The same, and what makes the gradient of ``x`` of its gradient."""
        made, inwards = gated_and_backward(self.gate, x)
        if self.kept is None:
            return made, inwards
        factors = self._factors(token, made)
        return made * factors, lambda grad: inwards(grad * factors)

    def _factors(self, token: Tensor | None, like: Tensor) -> Tensor:
        assert self.kept is not None
        kept = self.kept if token is None else self.kept.index_select(0, token)
        return kept.to(like.dtype, copy=True).mul_(self.factor)


def gated(gate: Gate | Formula, x: Tensor) -> Tensor:
    """What the gate gives."""
    if isinstance(gate, Formula):
        (made,) = _run(gate.value, gate.named(x))
        return made if gate.value.calls else made.clone()
    result: Tensor = gate.apply(x, FORWARD)
    return result


def gated_and_backward(gate: Gate | Formula, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """``gated(gate, x)``, and what makes the gradient of ``x`` of its gradient: both need the activation."""
    if isinstance(gate, Formula):
        return gated(gate, x), functools.partial(_inwards, gate, x)
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


def _inwards(gate: Formula, x: Tensor, grad: Tensor) -> Tensor:
    found = _run(gate.gradient, {**gate.named(x), "d": grad})
    if not gate.glu:
        return found[0]
    result = torch.empty_like(x)
    for into, made in zip(gate.parts(result), found, strict=True):
        into.copy_(made)
    return result


def _run(steps: Steps, given: dict[str, Tensor]) -> tuple[Tensor, ...]:
    own = next(iter(given.values())).dtype
    return steps.run(given, _aten, lambda x, name: x.to(own if name == "own" else getattr(torch, name), copy=True))
