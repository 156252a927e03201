"""New values of buffers: kept while a forward runs, stored when it is over.

Nothing that runs sees a buffer change: what the backward pass needs of a buffer, and what a recomputed block
reads of it, is its value of before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autopar.runtime.reading import part_of


class Updates:
    """``buffers``: the tensors that are stored, by name."""

    def __init__(self, buffers: Mapping[str, Tensor]) -> None:
        self._buffers = buffers
        self._pending: dict[str, Tensor] = {}

    def begin(self) -> None:
        """A new forward: one that failed leaves nothing behind."""
        self._pending.clear()

    def take(self, results: Sequence[Tensor], names: Sequence[str]) -> tuple[Tensor, ...]:
        """``results`` without the last ones, which are the new values of the buffers ``names``."""
        kept = len(results) - len(names)
        self._pending.update(zip(names, results[kept:], strict=True))
        return tuple(results[:kept])

    def finish(self) -> None:
        """Store what was taken."""
        with torch.no_grad():
            for name, new in self._pending.items():
                part_of(self._buffers[name]).copy_(new)
        self._pending.clear()
