"""Parameters of a model on meta, made by the model's own initialiser, one module at a time.

No rank ever holds the whole model: each module is filled alone, its tensors are cut, and it is dropped. The
generator is seeded by the module's name, so that every rank draws the same, in any order.
"""

from __future__ import annotations

import copy
import hashlib

import torch
from torch import Tensor, nn

from autopar.ir.errors import UnsupportedError
from autopar.runtime.parameters import Whole, whole_of


def is_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def tensors_of(model: nn.Module, *, seed: int = 0) -> Whole:
    """Whole tensors by name: those of a real model, or what its initialiser gives a model on meta."""
    return _Initialiser(model, seed) if is_meta(model) else whole_of(model)


class _Initialiser:
    """Remembers the last module only: names of one module come one after the other."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model, self.seed = model, seed
        self.path: str | None = None
        self.made: dict[str, Tensor] = {}
        self.real = {
            name: tensor.detach()
            for name, tensor in (
                *model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)
            )
            if not tensor.is_meta
        }  # fmt: skip

    def __call__(self, name: str) -> Tensor:
        if name in self.real:
            return self.real[name]
        path, _, leaf = name.rpartition(".")
        if path != self.path:
            self.path, self.made = path, self._make(path)
        return self.made[leaf]

    def _make(self, path: str) -> dict[str, Tensor]:
        module = self.model.get_submodule(path)
        alone = copy.copy(module)
        alone._modules = {}
        alone._parameters = {
            key: None if p is None else nn.Parameter(_empty(p), requires_grad=p.requires_grad and p.is_floating_point())
            for key, p in module._parameters.items()
        }
        alone._buffers = {key: None if b is None else _empty(b) for key, b in module._buffers.items()}
        digest = hashlib.sha256(f"{self.seed}:{path}".encode()).digest()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int.from_bytes(digest[:7], "big"))
            self._initialise(alone, path)
        return {
            key: tensor.detach()
            for key, tensor in (*alone._parameters.items(), *alone._buffers.items())
            if tensor is not None
        }

    def _initialise(self, module: nn.Module, path: str) -> None:
        own = getattr(self.model, "_init_weights", None)
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
        if own is not None:
            own(module)
        elif reset is None:
            raise UnsupportedError(
                f"{path or 'the model'} ({type(module).__name__}) is on meta and has no reset_parameters(); "
                "give it one, or pass a model with real weights"
            )


def _empty(tensor: Tensor) -> Tensor:
    """NaN where floating, so that what no initialiser fills cannot pass for a weight."""
    real = torch.empty(tensor.shape, dtype=tensor.dtype)
    return real.fill_(float("nan")) if real.is_floating_point() else real.zero_()
