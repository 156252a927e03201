"""How many bytes of tensors are alive on a CPU, which has no allocator to ask: the storages that operations touch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autopar.runtime.reading import part_of


class LiveMemory(TorchDispatchMode):
    """``peak_bytes`` is the most that was alive at once while the mode was on, ``known`` tensors included.

    Storages that no operation touches are not seen, and neither are temporaries inside a kernel.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._note(tensor)
        self.peak_bytes = self._alive()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor):
                self._note(value)
        self.peak_bytes = max(self.peak_bytes, self._alive())
        return result

    def _note(self, tensor: Tensor) -> None:
        local = part_of(tensor)
        if local.device.type == "cpu" and type(local) in (Tensor, torch.nn.Parameter):
            storage = local.untyped_storage()
            key = storage._cdata
            if key not in self._storages:
                self._storages[key] = weakref.ref(storage, partial(self._forget, key))

    def _forget(self, key: int, _: object) -> None:
        self._storages.pop(key, None)

    def _alive(self) -> int:
        return sum(s.nbytes() for ref in tuple(self._storages.values()) if (s := ref()) is not None)
