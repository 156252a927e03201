"""How many bytes of tensors are alive, and which operations made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar.runtime.live_memory import LiveMemory


class Live(LiveMemory):
    """Requires: entered before the tensors that count are made. ``peak_bytes`` is the most since ``reset``.

    ``at_peak``: operation that made a storage, or was the first to touch it → bytes, at that moment.
    """

    def __init__(self) -> None:
        super().__init__(())
        self.made_by: dict[int, str] = {}
        self.at_peak: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = self.peak_bytes
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.made_by.update(dict.fromkeys(self._storages.keys() - self.made_by.keys(), func._schema.name))
        if self.peak_bytes > before:
            self.at_peak = self.by_operation()
        return result

    def _forget(self, key: int, ref: object) -> None:
        super()._forget(key, ref)
        self.made_by.pop(key, None)

    def by_operation(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, ref in tuple(self._storages.items()):
            if (storage := ref()) is not None:
                found[self.made_by[key]] = found.get(self.made_by[key], 0) + storage.nbytes()
        return found

    def reset(self) -> None:
        self.peak_bytes, self.at_peak = self._alive(), self.by_operation()
