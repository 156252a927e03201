"""Linear attention by a gated delta rule, of transformers' models, traced as one operation a layer.

Under an export transformers inverts each chunk row by row, and writes out the chunks one by one: a thousand operations
a layer and more. While a trace runs, modules that call one of its functions by name call one here, which leaves
``autopar.delta_rule`` in the graph with the name of that function, which a program calls at run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autopar.passes.trace.tokens import state_of

TARGETS = {"autopar_trace.delta_rule.default": "autopar.delta_rule"}
"""Operations of a trace by what they are called in the graph."""

# Of a decay a head, or a head and channel; each gives the values and a state.
_NAMES = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
_TENSORS = ("query", "key", "value", "g", "beta")
_HOW = {"chunk_size": 64, "use_qk_l2norm_in_kernel": False}

_library = torch.library.Library("autopar_trace", "FRAGMENT")
_library.define(
    "delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, *, str function, int chunk, bool normalized) "
    "-> Tensor"
)


@torch.library.register_fake("autopar_trace::delta_rule", lib=_library)  # type: ignore[untyped-decorator]
def _delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **how: Any) -> Tensor:
    return q.new_empty(v.shape)


@contextmanager
def delta_rules_as_one(model: nn.Module) -> Iterator[None]:
    """Inside, what modules of ``model`` call by a known name leaves one operation in a trace; afterwards as before."""
    held: list[tuple[dict[str, Any], str, Any]] = []
    try:
        kinds = dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__)
        for place in dict.fromkeys(kind.__module__ for kind in kinds):
            for name in _NAMES:
                function = getattr(sys.modules.get(place), name, None)
                if not callable(function):
                    continue
                traced = _traced(function, f"{place}.{name}")
                # versions before 5.17 keep it at each module as well
                holders = [vars(sys.modules[place]), *(state_of(module) for module in model.modules())]
                for holder in holders:
                    for key in [key for key, value in holder.items() if value is function]:
                        held.append((holder, key, function))
                        holder[key] = traced
        yield
    finally:
        for holder, key, function in held:
            holder[key] = function


def _traced(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """What is called in place of ``function``: it itself wherever there is more to it than the operation knows."""
    signature = inspect.signature(function)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}

    def call(*args: Any, **given: Any) -> Any:
        bound = signature.bind(*args, **given).arguments
        beside = bound.pop("kwargs", {})
        tensors = [bound.pop(name, None) for name in _TENSORS]
        how = [bound.pop(name, defaults.get(name, default)) for name, default in _HOW.items()]
        more = [value for name, value in bound.items() if value is not None and value is not defaults[name]]
        packed = [beside.get(name) for name in ("cu_seqlens", "seq_idx")]
        if more or any(each is not None for each in packed) or not all(isinstance(each, Tensor) for each in tensors):
            return function(*args, **given)
        chunk, normalized = how
        made = torch.ops.autopar_trace.delta_rule(*tensors, function=path, chunk=chunk, normalized=normalized)
        return made, None

    return call
