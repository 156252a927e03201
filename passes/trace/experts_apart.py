"""Experts that are modules of their own, chosen by a mask, traced as one operation.

Switch Transformers of transformers 5 loop over the experts that a mask hits, which no trace can follow. While one runs
their weights are stacked and the mask is told as an index and a weight: a token that no expert takes, for want of
capacity, has weight 0. The weights stay parameters of their own, so that an axis which splits the experts splits the
work, not what is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace.experts import plain_gate

_MODULE, _CLASS = "transformers.models.switch_transformers.modeling_switch_transformers", "SwitchTransformersExperts"


@contextmanager
def experts_stacked(model: nn.Module) -> Iterator[None]:
    """Inside, such experts of ``model`` leave one operation in a trace; forward may convert a module to another type.

    Requires: as ``experts_as_one``.
    """
    kind: Any = getattr(sys.modules.get(_MODULE), _CLASS, None)  # a model that uses it has imported it
    found = [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]
    if not found:
        yield
        return
    gates = {id(module): plain_gate(next(iter(module.values())).act) for module in found}
    forward, to = kind.forward, nn.Module.to
    changed: list[nn.Module] = []

    def stacked(self: Any, *given: Tensor) -> Tensor:
        return _stacked(self, *given, gate=gates[id(self)])

    kind.forward, nn.Module.to = stacked, _converted(to, changed)  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.forward, nn.Module.to = forward, to  # type: ignore[method-assign]
        for module in changed:
            vars(module).pop("forward", None)


def _stacked(
    self: Any, hidden_states: Tensor, selected_experts: Tensor, routing_weights: Tensor, *, gate: str
) -> Tensor:
    """In place of the loop. hidden_states: [token, hidden]; selected_experts: [token, 1, expert], 0 or 1."""
    experts = list(self.values())
    first = experts[0]
    if not gate:
        raise UnsupportedError(f"experts with the activation {type(first.act).__name__}, which is none of those known")
    if first.training and first.dropout.p > 0:
        raise UnsupportedError(
            f"dropout of {first.dropout.p} inside the experts of Switch Transformers: set dropout_rate=0 in its "
            "configuration, or use autopar.nn.MoE"
        )
    weight = routing_weights * selected_experts.sum(dim=-1).to(routing_weights.dtype)
    made: Tensor = torch.ops.autopar_trace.experts(
        hidden_states, selected_experts.argmax(dim=-1), weight,
        torch.stack([expert.wi.weight for expert in experts]), torch.stack([expert.wo.weight for expert in experts]),
        None, gate=gate, transposed=False,
    )  # fmt: skip
    return made


def _converted(original: Any, changed: list[nn.Module]) -> Any:
    """``nn.Module.to`` as the router calls it in each forward: a module of another type computes with converted
    parameters and keeps its own. ``changed``: which do, by a forward of their own."""

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if len(args) == 1 and isinstance(args[0], torch.dtype) and not kwargs:
            if any(tensor.is_floating_point() and tensor.dtype != args[0] for tensor in self.parameters()):
                vars(self)["forward"] = _in_type(self, args[0])
                changed.append(self)
            return self
        converted: nn.Module = original(self, *args, **kwargs)
        return converted

    return to


def _in_type(module: nn.Module, dtype: torch.dtype) -> Any:
    """Its forward, with floating-point parameters converted."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        tensors = {name: p.to(dtype) if p.is_floating_point() else p for name, p in module.named_parameters()}
        del vars(module)["forward"]
        try:
            return torch.func.functional_call(module, tensors, args, kwargs)
        finally:
            vars(module)["forward"] = forward

    return forward
