"""torch.compile of the blocks: each distinct block once, for all its instances.

An instance calls its block's function with its own parameters, so that shapes, types and guards are the same for all
of them and what the first call compiled serves the others. Collectives are in the compiled graph. The main graph runs
eagerly: its embedding and loss run once a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
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


def warn_of_recomputation(recompute: Mapping[str, str], how: Compile, *, stacklevel: int) -> None:
    """A UserWarning where a plan's blocks are recomputed in another way because they are compiled.

    What selective recomputation keeps goes along on a tape, which no compiler follows: compiled blocks run again whole.
    """
    names = sorted(name for name, chosen in recompute.items() if chosen == "selective")
    if how and names:
        warnings.warn(
            f"{', '.join(names)}: planned with selective recomputation, and compiled, so recomputed in full: the step "
            "takes more time and less memory than the plan says; give recompute='full' or 'none' to plan what runs, or "
            "leave compile out", stacklevel=stacklevel + 1,
        )  # fmt: skip
