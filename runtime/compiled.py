"""torch.compile of the blocks: each distinct block once, for all its instances.

An instance calls its block's function with its own parameters, so that shapes, types and guards are the same for all
of them and what the first call compiled serves the others. Collectives are in the compiled graph. The main graph runs
eagerly: its embedding and loss run once a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

# Whether to compile, or the name of a backend of torch.compile to do it with.
Compile: TypeAlias = "bool | str"


def compiled(function: Callable[..., Any], how: Compile) -> Callable[..., Any]:
    """``function`` as it is, or compiled on its first call. Requires: it is called with the same shapes always."""
    if not how:
        return function
    if isinstance(how, str):
        return torch.compile(function, backend=how, dynamic=False)
    return torch.compile(function, dynamic=False)
