"""Which choices an expert of limited capacity takes: each sequence by itself, first choices first."""

from __future__ import annotations

import math

from torch import Tensor


def capacity_of(factor: float, choices: int, num_experts: int) -> int:
    """Choices that one expert takes of a sequence that makes ``choices`` of them: ``factor`` times its even share.

    Rounded up, but not for a rounding error of the product: 1.1 · 10 is 11.
    """
    return max(1, math.ceil(factor * choices / num_experts - 1e-9))


def in_line(index: Tensor) -> Tensor:
    """The choices [batch, length, prototypes, k] as they queue: [batch, prototypes, k · length].

    All first choices by position, then all second ones (GShard, 2021; Switch, 2022).
    """
    return index.permute(0, 2, 3, 1).flatten(2)


def load_of(line: Tensor, experts: int) -> Tensor:
    """How many choices in line [batch, prototypes, n] want each expert: int64 [batch, prototypes, experts]."""
    zeros = line.new_zeros((*line.shape[:2], experts))
    return zeros.scatter_add(-1, line, line.new_ones(line.shape))


def places(line: Tensor, load: Tensor) -> Tensor:
    """How many stand before each choice in line [batch, prototypes, n] and want the same expert.

    In the line sorted by expert, a choice stands behind all that want lower experts, and those before it that want its
    own.
    """
    sorted_at = line.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    lower = load.cumsum(-1) - load
    return sorted_at - lower.gather(-1, line)


def back(line: Tensor, top_k: int) -> Tensor:
    """The inverse of ``in_line``."""
    return line.reshape(*line.shape[:2], top_k, -1).permute(0, 3, 1, 2)
