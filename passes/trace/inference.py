"""``torch.inference_mode`` in a model's forward: torch.export leaves no trace of it, so it becomes ``torch.no_grad``.

Both keep gradients out, which is all that a training step sees of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_ENTERED = "_autopar_entered"


@contextmanager
def inference_without_gradients() -> Iterator[None]:
    """Inside, entering inference mode, as a context or a decorator, turns gradients off as ``no_grad`` does."""
    kind: Any = torch.inference_mode
    before = kind.__enter__, kind.__exit__

    def enter(self: Any) -> None:
        guard = torch.set_grad_enabled(torch.is_grad_enabled() and not self.mode)
        vars(self).setdefault(_ENTERED, []).append(guard)

    def leave(self: Any, *raised: Any) -> None:
        vars(self)[_ENTERED].pop().__exit__(*raised)

    kind.__enter__, kind.__exit__ = enter, leave
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = before
