"""Numbers that a forward changes on its modules, such as a count of its calls: a program has those of the trace."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

from torch import nn


def numbers(model: nn.Module) -> dict[str, float]:
    """The numbers that modules hold as plain attributes, by name."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in model.named_modules() for name, value in vars(module).items()
        if isinstance(value, (int, float)) and name != "training"
    }  # fmt: skip


def changed(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[str, ...]:
    """Names of those that are others now."""
    return tuple(name for name, value in before.items() if after.get(name, value) != value)


def warn_of(names: Collection[str]) -> None:
    """Name the numbers that a forward changed."""
    if names:
        warnings.warn(
            f"the forward changes {', '.join(names)}: every step has what they were in the trace. If results "
            "depend on it, make it a buffer and change that in place",
            stacklevel=2,
        )  # fmt: skip
