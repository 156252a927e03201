"""Random programs of views and simple work: the canonical graph computes the same, and is a fixed point."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.trace.compare import assert_same

SHAPE = (2, 3, 4, 6)


class Program(nn.Module):
    """A chain of operations chosen by ``seed``."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.w = nn.Parameter(torch.randn(SHAPE).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pick = random.Random(self.seed)
        value = self.w * x
        for _ in range(pick.randint(4, 10)):
            value = one_step(value, pick)
            if value.numel() > 4000 or value.dim() > 6:
                value = value.flatten()[:48].reshape(3, 4, 4)
        return value


def one_step(x: torch.Tensor, pick: random.Random) -> torch.Tensor:
    rank = x.dim()
    dim = pick.randrange(rank)
    size = x.shape[dim]
    divisor = pick.choice([n for n in range(1, size + 1) if size % n == 0])
    start = pick.randrange(size)
    steps: list[Callable[[], torch.Tensor]] = [
        lambda: x.flatten(dim, pick.randrange(dim, rank)),
        lambda: x.permute(pick.sample(range(rank), rank)),
        lambda: x.unflatten(dim, (divisor, size // divisor)),
        lambda: x.unsqueeze(dim),
        lambda: x.select(dim, start) if rank > 1 else x,
        lambda: x.narrow(dim, start, pick.randint(1, size - start)),
        lambda: torch.tanh(x) * 2 + x,
        lambda: x.softmax(dim),
        lambda: torch.cat([x, x.sin()], dim),
        lambda: x.cumsum(dim),
        lambda: x.sum(dim) if rank > 1 else x,
        lambda: x @ torch.ones(x.shape[-1], 3, dtype=x.dtype) if rank > 1 else x,
        lambda: x.chunk(2, dim)[-1],
        lambda: x - x.mean(dim, keepdim=True),
        lambda: x.repeat(*(pick.choice([1, 1, 2]) for _ in range(rank))),
        lambda: F.layer_norm(x, x.shape[-1:]),
    ]
    return pick.choice(steps)()


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_compute_the_same(seed: int) -> None:
    torch.manual_seed(seed)
    assert_same(Program(seed), (torch.randn(SHAPE).double(),), tolerance=1e-9)
