"""Layers that could be left out by chance, where the chance is zero.

Models with LayerDrop ask for each layer whether a random number is below the attribute ``layerdrop``. Some ask even
where it is 0, which no number is below, but a trace has no numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_ATTRIBUTE = "layerdrop"
_BELOW = (Tensor.lt, Tensor.__lt__, torch.lt)


class _Never(float):
    """0.0, which no tensor of probabilities is below: that is known without their values."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _BELOW and isinstance(args[-1], cls):
            return False
        plain = [float(arg) if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


@contextmanager
def kept_layers(model: nn.Module) -> Iterator[None]:
    """Inside, modules of ``model`` whose ``layerdrop`` is zero leave out no layer, and need no numbers to tell."""
    found = [module for module in model.modules() if type(vars(module).get(_ATTRIBUTE)) in (float, int)]
    before = [(module, vars(module)[_ATTRIBUTE]) for module in found if vars(module)[_ATTRIBUTE] == 0]
    for module, _ in before:
        vars(module)[_ATTRIBUTE] = _Never()
    try:
        yield
    finally:
        for module, value in before:
            vars(module)[_ATTRIBUTE] = value
