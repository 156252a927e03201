"""Models that the command line must refuse, each for one reason."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.api.ranks import Net, example


def fine(batch_size: int = 8) -> tuple[nn.Module, dict[str, Tensor]]:
    return Net(), example(batch_size)


def wider() -> tuple[nn.Module, dict[str, Tensor]]:
    return Net(64), example()


def branching() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.ModuleDict({"inner": Net(breaks=True)})["inner"], example()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].clamp(-1, 1)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), Inner())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).sum()  # type: ignore[no-any-return]


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Twice.apply(x)  # type: ignore[no-any-return]


def custom() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Custom(), (torch.randn(8, 16),)


class Reducing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.distributed.all_reduce(x)
        return x


def reducing() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(nn.Linear(16, 16), Reducing()), (torch.randn(8, 16),)


class Counting(nn.Module):
    """A batch norm whose running statistics weigh every batch alike: the weight is a number that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).sum()  # type: ignore[no-any-return]


def counting() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Counting(), (torch.randn(8, 16),)


def lossless() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Linear(4, 4), (torch.randn(8, 4),)


def failing() -> tuple[nn.Module, tuple[Tensor, ...]]:
    raise ValueError("our own mistake")


def nothing() -> int:
    return 3
