"""Operations of a user's own library: registered with torch, unknown to autopar."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SQUASH, MIX, PLAIN = "apt_tests.squash.default", "apt_tests.mix.default", "apt_tests.plain.default"
PAIR = "apt_tests.pair.default"


@torch.library.custom_op("apt_tests::squash", mutates_args=())
def squash(x: Tensor, gain: Tensor, scale: float = 1.0) -> Tensor:
    """``tanh(scale x) gain``: rows and columns are independent."""
    return torch.tanh(scale * x) * gain


@squash.register_fake
def _(x: Tensor, gain: Tensor, scale: float = 1.0) -> Tensor:
    return torch.empty_like(x)


def _squash_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.scale = inputs[2]


def _squash_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, gain = ctx.saved_tensors
    inner = torch.tanh(ctx.scale * x)
    into_gain = (gradient * inner).reshape(-1, x.shape[-1]).sum(0)
    return gradient * gain * (1 - inner * inner) * ctx.scale, into_gain, None


squash.register_autograd(_squash_backward, setup_context=_squash_context)


@torch.library.custom_op("apt_tests::mix", mutates_args=())
def mix(x: Tensor) -> Tensor:
    """``x - mean over rows``, with a wrong gradient for whoever believes that rows are independent."""
    return x - x.mean(0)


@mix.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


mix.register_autograd(lambda ctx, gradient: gradient - gradient.mean(0))


@torch.library.custom_op("apt_tests::pair", mutates_args=())
def pair(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """A list in, two tensors out: twice the first, three times the second."""
    return 2 * xs[0], 3 * xs[1]


@pair.register_fake
def _(xs: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.empty_like(xs[0]), torch.empty_like(xs[1])


pair.register_autograd(lambda ctx, first, second: [2 * first, 3 * second])


@torch.library.custom_op("apt_tests::plain", mutates_args=())
def plain(x: Tensor) -> Tensor:
    """Without a gradient."""
    return x * x


@torch.library.custom_op("apt_tests::honest_forward", mutates_args=())
def honest_forward(x: Tensor) -> Tensor:
    """Rows are independent forward; the registered gradient is centred over rows."""
    return 2 * x


@honest_forward.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


honest_forward.register_autograd(lambda ctx, gradient: 2 * (gradient - gradient.mean(0)))


class Net(nn.Module):
    """A classifier whose activation is ``squash``; ``mixed``: with ``mix`` and ``pair`` behind it."""

    def __init__(self, *, mixed: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.gain = nn.Parameter(torch.linspace(0.5, 2, 32))
        self.down = nn.Linear(32, 8)
        self.mixed = mixed
        self.double()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = squash(self.up(x), self.gain, 0.5)
        if self.mixed:
            first, second = pair([mix(h), h])
            h = first + second
        return F.cross_entropy(self.down(h), labels)


def net(*, mixed: bool = False) -> Net:
    torch.manual_seed(0)
    return Net(mixed=mixed)


def batch(rows: int = 512) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 8, (rows,), generator=generator)
    labels[0] = -100
    return {"x": torch.randn(rows, 16, generator=generator, dtype=torch.float64), "labels": labels}


def example() -> tuple[Net, dict[str, Tensor]]:
    """For the command line."""
    return net(), batch()
