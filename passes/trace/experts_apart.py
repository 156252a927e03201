"""Experts that a class of their own computes one by one, traced as one operation.

Some models of transformers 5 loop over the experts that a mask hits, outside of its registry, which no trace can
follow. While one runs the class hands their weights to the operation, in the shape that it takes; the parameters stay
what they are. Those of Switch Transformers are modules, which are stacked: an axis that splits the experts splits the
work, not what is kept. A token that no expert takes, for want of capacity or since its expert does nothing, has
weight 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace.experts import plain_gate
from autopar.passes.trace.reads import change


@contextmanager
def experts_stacked(model: nn.Module) -> Iterator[None]:
    """Inside, such experts of ``model`` leave one operation in a trace; forward may convert a module to another type.

    Requires: as ``experts_as_one``.
    """
    kinds: dict[Any, Any] = {}
    gates: dict[int, str] = {}
    for (place, name), (activation, traced) in _TRACED.items():
        kind: Any = getattr(sys.modules.get(place), name, None)  # a model that uses it has imported it
        found = [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]
        if found:
            kinds[kind] = traced
            gates |= {id(module): plain_gate(activation(module)) for module in found}
    if not kinds:
        yield
        return
    before, to = {kind: kind.forward for kind in kinds}, nn.Module.to
    changed: list[nn.Module] = []
    for kind, traced in kinds.items():
        kind.forward = _in_place_of_loop(traced, gates)
    nn.Module.to = _converted(to, changed)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, forward in before.items():
            kind.forward = forward
        nn.Module.to = to  # type: ignore[method-assign]
        for module in changed:
            vars(module).pop("forward", None)


def _in_place_of_loop(traced: Callable[..., Tensor], gates: dict[int, str]) -> Callable[..., Tensor]:
    """A forward of the class."""

    def forward(self: Any, *given: Tensor) -> Tensor:
        if not gates[id(self)]:
            raise UnsupportedError(f"{type(self).__name__} with an activation that is none of those known")
        return traced(self, *given, gate=gates[id(self)])

    return forward


def _stacked(
    self: Any, hidden_states: Tensor, selected_experts: Tensor, routing_weights: Tensor, *, gate: str
) -> Tensor:
    """Of Switch Transformers. hidden_states: [token, hidden]; selected_experts: [token, 1, expert], 0 or 1."""
    experts = list(self.values())
    first = experts[0]
    weight = routing_weights * selected_experts.sum(dim=-1).to(routing_weights.dtype)
    up, down = (torch.stack([getattr(expert, name).weight for expert in experts]) for name in ("wi", "wo"))
    p = first.dropout.p if first.training else 0.0
    # A token has one expert, so what its expert drops is drawn by token.
    kept = F.dropout(hidden_states.new_ones(len(hidden_states), up.shape[1]), p) != 0 if p > 0 else None
    index, factor = selected_experts.argmax(dim=-1), 1 / (1 - p) if p < 1 else 0.0
    return _experts(hidden_states, index, weight, up, down, gate=gate, kept=kept, kept_factor=factor)


def _flat(self: Any, hidden_states: Tensor, index: Tensor, weight: Tensor, *, gate: str) -> Tensor:
    """Of DBRX, whose parameters are [expert · intermediate, hidden]. hidden_states: [batch, sequence, hidden]."""
    of_each = (self.num_experts, self.ffn_hidden_size, self.hidden_size)
    up = torch.cat([self.mlp.w1.view(of_each), self.mlp.v1.view(of_each)], dim=1)
    tokens = hidden_states.reshape(-1, self.hidden_size)
    made = _experts(tokens, index, weight, up, self.mlp.w2.view(of_each).transpose(1, 2), gate=f"{gate}-glu")
    return made.view(hidden_states.shape)


def _some_idle(self: Any, hidden_states: Tensor, index: Tensor, weight: Tensor, *, gate: str) -> Tensor:
    """Of LongCat-Flash, where experts after the last one hand a token on as it is. hidden_states: [token, hidden]."""
    works = index < self.num_routed_experts
    passed = (weight * ~works).sum(dim=-1, keepdim=True)
    made = _experts(
        hidden_states, index * works, (weight * works).to(hidden_states.dtype),
        self.gate_up_proj[: self.num_routed_experts], self.down_proj, gate=f"{gate}-glu",
    )  # fmt: skip
    total: Tensor = made + (hidden_states * passed).to(hidden_states.dtype)
    return total


def _experts(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, *, gate: str, kept: Tensor | None = None,
    kept_factor: float = 1.0,
) -> Tensor:  # fmt: skip
    how = {} if kept is None else {"kept_factor": kept_factor}
    made: Tensor = torch.ops.autopar_trace.experts(
        x, index, weight, up, down, None, kept, gate=gate, transposed=False, **how
    )
    return made


_MODELS = "transformers.models"
# By module and class: the activation of such experts, and what stands in for their loop.
_TRACED: dict[tuple[str, str], tuple[Callable[[Any], Any], Callable[..., Tensor]]] = {
    (f"{_MODELS}.switch_transformers.modeling_switch_transformers", "SwitchTransformersExperts"): (
        lambda experts: next(iter(experts.values())).act, _stacked,
    ),
    (f"{_MODELS}.dbrx.modeling_dbrx", "DbrxExperts"): (lambda experts: experts.mlp.activation_fn, _flat),
    (f"{_MODELS}.longcat_flash.modeling_longcat_flash", "LongcatFlashExperts"): (
        lambda experts: experts.act_fn, _some_idle,
    ),
}  # fmt: skip


def _converted(original: Any, changed: list[nn.Module]) -> Any:
    """``nn.Module.to`` as the router calls it in each forward: a module of another type computes with converted
    parameters and keeps its own. ``changed``: which do, by a forward of their own."""

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if len(args) == 1 and isinstance(args[0], torch.dtype) and not kwargs:
            if any(tensor.is_floating_point() and tensor.dtype != args[0] for tensor in self.parameters()):
                change(self, "forward", lambda other: other.to(args[0]))
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
        for path in tensors:  # what stands in their place meanwhile is none of the module's
            owner, _, name = path.rpartition(".")
            change(module.get_submodule(owner), name, lambda other: None)
        del vars(module)["forward"]
        try:
            return torch.func.functional_call(module, tensors, args, kwargs)
        finally:
            vars(module)["forward"] = forward

    return forward
