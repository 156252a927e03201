"""The experts of Hugging Face's models, traced as one operation each.

transformers keeps the ways in which a layer may compute its experts in a registry, from which
``config._experts_implementation`` chooses. While a trace runs there is one more, which leaves ``autopar.experts`` in
the graph, and it is chosen for every configuration of whose experts all do what that operation can do: their gate is
found by trying it on numbers, whatever it is called, or read off its operations. Routers stay as the model has them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.ir.gates import ACTIVATIONS, Gate
from autopar.passes.trace.formulas import formula_of
from autopar.passes.trace.tokens import state_of

TARGETS = {
    "autopar_trace.experts.default": "autopar.experts",
    "autopar_trace.expert_bias.default": "autopar.expert_bias",
    "autopar.experts.default": "autopar.experts",  # a layer of ours, traced
}
"""Operations of a trace by what they are called in the graph."""

_REGISTRY = "transformers.integrations.moe"
_NAME = "autopar"
_GATE = "_autopar_gate"
_CHOSEN = "_experts_implementation_internal"
# What the decorator of transformers leaves on a module of experts, whatever the version; later ones leave more.
_MARKS = {"has_bias", "is_transposed", "config"}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(), "sigmoid": torch.sigmoid, "tanh": torch.tanh,
}  # fmt: skip

# Of numbers that a gate is tried on: it is not asked what it does with larger ones.
LARGEST_TRIED = (11.0, 1e3, 1e6)

_library = torch.library.Library("autopar_trace", "FRAGMENT")
_library.define(
    "experts(Tensor x, Tensor index, Tensor weight, Tensor up, Tensor down, Tensor? up_bias, Tensor? kept=None, *, "
    "str gate, bool transposed=False, float kept_factor=1.0) -> Tensor"
)
_library.define("expert_bias(Tensor index, Tensor weight, Tensor bias) -> Tensor")


@torch.library.register_fake("autopar_trace::experts", lib=_library)  # type: ignore[untyped-decorator]
def _experts(x: Tensor, *args: Any, **how: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("autopar_trace::expert_bias", lib=_library)  # type: ignore[untyped-decorator]
def _expert_bias(index: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return bias.new_empty(index.shape[0], bias.shape[1])


@contextmanager
def experts_as_one(model: nn.Module) -> Iterator[None]:
    """Inside, experts of ``model`` that are known leave one operation in a trace; afterwards all is as before.

    Requires: the model's tensors are its own, not stand-ins yet.
    """
    # a model that uses the registry has imported it
    interface: Any = getattr(sys.modules.get(_REGISTRY), "ALL_EXPERTS_FUNCTIONS", None)
    found = {} if interface is None else _known(model)
    configs = {id(module.config): vars(module.config) for module, _ in found.values()}
    before = {key: config[_CHOSEN] for key, config in configs.items()}
    try:
        for module, gate in found.values():
            vars(module)[_GATE] = gate
        for config in configs.values():
            config[_CHOSEN] = _NAME
        if found:
            interface[_NAME] = _traced
        yield
    finally:
        if found:
            del interface[_NAME]
        for key, config in configs.items():
            config[_CHOSEN] = before[key]
        for module, _ in found.values():
            del vars(module)[_GATE]


def _traced(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What the registry calls in place of a module's forward."""
    up = self.gate_up_proj if _has_gate(self) else self.up_proj
    bias = None
    if self.has_bias:
        bias = self.gate_up_proj_bias if _has_gate(self) else self.up_proj_bias
    result: Tensor = torch.ops.autopar_trace.experts(
        hidden_states, top_k_index, top_k_weights, up, self.down_proj, bias,
        gate=self._autopar_gate, transposed=self.is_transposed,
    )  # fmt: skip
    if self.has_bias:
        result = result + torch.ops.autopar_trace.expert_bias(top_k_index, top_k_weights, self.down_proj_bias)
    return result


def _known(model: nn.Module) -> dict[int, tuple[Any, str]]:
    """By identity, modules of experts with their gates, of configurations whose experts are all known."""
    every = [
        module for module in model.modules()
        if state_of(module).keys() >= _MARKS and hasattr(type(module), "_apply_gate")
    ]  # fmt: skip
    tried: dict[object, str] = {}
    gates = {id(module): _gate_of(module, tried) for module in every}
    unknown = {id(module.config) for module in every if not gates[id(module)] or _CHOSEN not in vars(module.config)}
    return {id(module): (module, gates[id(module)]) for module in every if id(module.config) not in unknown}


def _has_gate(module: Any) -> bool:
    """Transformers 5.0 knows of no others."""
    return bool(getattr(module, "has_gate", True))


def _gate_of(module: Any, tried: dict[object, str]) -> str:
    """The text of a module's gate; empty for one that no text says. ``tried``: by what gates gave."""
    if getattr(module, "has_post_expert_norm", False) or getattr(module, "_is_expert_parallel", False):
        return ""
    x, glu = _numbers(), _has_gate(module)
    function = module._apply_gate if glu else module.act_fn
    try:
        with torch.no_grad():
            seen = function(x.clone())
            key = glu, tuple(seen.flatten().tolist())
    except Exception:  # noqa: BLE001 - a function of the user's, on numbers that it was not made for
        return ""
    if key not in tried:
        named = next((str(gate) for gate in _gates(module) if _gives(gate, x, seen)), "")
        tried[key] = named or str(formula_of(function, x, glu=glu) or "")
    return tried[key]


def _numbers() -> Tensor:
    """What gates are tried on, [any, 8]: small and large, since a gate may cut off what is above some limit."""
    wave = torch.linspace(-9, 9, 48, dtype=torch.float64, device="cpu").reshape(6, 8).sin()
    return torch.cat([wave * most for most in LARGEST_TRIED])


def plain_gate(activation: Callable[[Any], Any]) -> str:
    """The text of the gate that an activation alone is; empty for one that no text says."""
    x = _numbers()
    with torch.no_grad():
        seen = activation(x.clone())
    named = next((name for name in ACTIVATIONS if _gives(Gate(activation=name), x, seen)), "")
    return named or str(formula_of(activation, x, glu=False) or "")


def _gives(gate: Gate, x: Tensor, seen: Tensor) -> bool:
    made = gate.apply(x, _FUNCTIONS)
    return made.shape == seen.shape and torch.allclose(made, seen, rtol=1e-12, atol=1e-12)


def _gates(module: Any) -> Iterator[Gate]:
    """Gates that a module may have, with the numbers that it holds: plain ones first."""
    if not _has_gate(module):
        yield from (Gate(activation=name) for name in ACTIVATIONS)
        return
    numbers = [value for value in state_of(module).values() if type(value) is float and value > 0]
    for limit, alpha, shift in itertools.product((None, *numbers), (1.0, *numbers), (0.0, 1.0)):
        for name, pairs in itertools.product(ACTIVATIONS, (False, True)):
            yield Gate(activation=name, glu=True, pairs=pairs, alpha=alpha, limit=limit, shift=shift)
