"""How many bytes of tensors are alive: every storage that an operation touches, until it is freed or resized."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Requires: entered before the tensors that count are made. ``peak`` is the most since ``reset``.

    ``at_peak``: operation that made a storage → bytes, at that moment. Temporaries inside a kernel are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.peak = 0
        self.at_peak: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor):
                self.note(value, func._schema.name)
        now = self.total()
        if now > self.peak:
            self.peak, self.at_peak = now, self.by_operation()
        return result

    def note(self, tensor: Tensor, made_by: str) -> None:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if local.device.type != "cpu" or type(local) not in (Tensor, torch.nn.Parameter):
            return
        storage = local.untyped_storage()
        key = storage._cdata
        if key not in self.storages:
            self.storages[key] = weakref.ref(storage, partial(self.forget, key)), made_by

    def forget(self, key: int, _: object) -> None:
        self.storages.pop(key, None)

    def total(self) -> int:
        return sum(storage.nbytes() for ref, _ in tuple(self.storages.values()) if (storage := ref()) is not None)

    def by_operation(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for ref, name in tuple(self.storages.values()):
            if (storage := ref()) is not None:
                found[name] = found.get(name, 0) + storage.nbytes()
        return found

    def reset(self) -> None:
        self.peak, self.at_peak = self.total(), self.by_operation()
