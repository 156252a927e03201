"""What torch.export leaves no trace of, and changes numbers: hooks on gradients, and seeds that a forward sets.

Hooks of modules that run in forward are traced like any other code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autopar.ir.errors import UnsupportedError

_REGISTER = ("register_hook", "register_post_accumulate_grad_hook")


@contextmanager
def no_hooks() -> Iterator[None]:
    """Inside, to register a hook on a tensor's gradient or to set the seed is refused."""
    kept: list[tuple[Any, str, Any]] = []

    def refuse(owner: Any, name: str, what: str) -> None:
        kept.append((owner, name, vars(owner)[name]))

        def refused(*args: object, **kwargs: object) -> None:
            raise UnsupportedError(f"the model calls {what} in its forward, which a traced model cannot do")

        setattr(owner, name, refused)

    try:
        for name in _REGISTER:
            if name in vars(torch.Tensor):
                refuse(torch.Tensor, name, f"{name}() of a tensor")
        refuse(torch, "manual_seed", "torch.manual_seed()")
        yield
    finally:
        for owner, name, original in reversed(kept):
            setattr(owner, name, original)
