"""Small models of what a model may do to its parameters and buffers, and how it may be called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from tests.families import FAMILIES

D = torch.float64


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=D)


def linear(n: int, m: int, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(n, m, bias=bias, dtype=D)


class Tied(nn.Module):
    """One weight in the embedding and the head, one in two of the repeated layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, dtype=D)
        self.layers = nn.ModuleList(linear(8, 8) for _ in range(4))
        self.head = linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.layers[2].weight = self.layers[0].weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        h = self.embed(ids)
        for layer in self.layers:
            h = h + layer(h).relu()
        return F.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())


class Reused(nn.Module):
    """A layer and its batch norm used twice, a frozen layer, one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(8, 8)
        self.norm = nn.BatchNorm1d(8, dtype=D)
        self.unused = linear(8, 8)
        self.frozen = linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.frozen(self.norm(self.layer(x)).relu())
        return self.norm(self.layer(h)).square().mean() + h.mean()  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.norm = linear(width, width, bias=False), nn.BatchNorm1d(width, dtype=D)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.down(x)).relu()  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Repeated blocks with a batch norm each."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.stem = linear(8, 12)
        self.blocks = nn.Sequential(*(Bottleneck(12) for _ in range(layers)))
        self.head = linear(12, 4)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.blocks(self.stem(x))), target)


class Normed(nn.Module):
    """One batch norm of 2, 3 or 4 dims in the middle; ``norm`` takes its number of channels."""

    def __init__(self, norm: Callable[[int], nn.Module], *shape: int) -> None:
        super().__init__()
        self.up = linear(8, 6 * int(torch.tensor(shape).prod()) if shape else 6)
        self.norm = norm(6)
        self.down = linear(6, 4)
        self.shape = (6, *shape)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h = self.norm(self.up(x).unflatten(1, self.shape)).relu()
        return F.mse_loss(self.down(h.flatten(2).mean(2) if h.dim() > 2 else h), target)


class Auxiliary(nn.Module):
    """A batch norm in a branch that the loss does not need: it counts its batches all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = linear(8, 6), nn.BatchNorm1d(6, dtype=D), linear(6, 4)

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        h = self.layer(x)
        return {"loss": F.mse_loss(self.head(h), target), "aux": self.norm(h)}


class Averages(nn.Module):
    """Buffers changed by assignment, in place, and from the loss; two change places."""

    average: Tensor
    calls: Tensor
    last: Tensor
    odd: Tensor
    even: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(8, 8)
        self.register_buffer("average", torch.ones(8, dtype=D))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros((), dtype=D))
        self.register_buffer("odd", torch.zeros(8, dtype=D))
        self.register_buffer("even", torch.ones(8, dtype=D))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x) * self.average + self.odd
        loss = h.square().mean()
        with torch.no_grad():
            self.average = 0.9 * self.average + 0.1 * h.mean(0)
            self.odd, self.even = self.even.clone(), self.odd.clone()
            self.calls += 1
            self.seen[0] = True
            self.last = loss.detach()
        return loss  # type: ignore[no-any-return]


class Codebook(nn.Module):
    """A codebook that follows what is looked up in it, which is read before and after it changes."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = linear(8, 4), linear(4, 8)
        self.register_buffer("codes", torch.linspace(-1, 1, 24, dtype=D).view(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        codes = self.codes.clone()
        z = self.up(x)
        weights = torch.softmax(-(z.unsqueeze(1) - codes).square().sum(-1), -1)
        before = weights @ codes
        with torch.no_grad():
            self.codes.mul_(0.9).add_(0.1 * (weights.t() @ z) / len(x))
        found = before + weights @ self.codes
        return (self.down(z + found) - x).square().mean()  # type: ignore[no-any-return]


class Moving(nn.Module):
    """A repeated block whose result depends on the buffer that it changes."""

    class Layer(nn.Module):
        centre: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = linear(8, 8)
            self.register_buffer("centre", torch.full((8,), 0.1, dtype=D))

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x) * torch.cos(self.centre)
            self.centre = self.centre + 0.5 * h.detach().mean(0)
            return x + h.tanh()  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()
        self.stem = linear(8, 8)
        self.layers = nn.Sequential(*(Moving.Layer() for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.stem(x)).square().mean()  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """Trained single numbers: a gate in each repeated block, and one on the output."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = linear(8, 8), nn.Parameter(torch.tensor(0.7, dtype=D))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.gate * self.linear(x).tanh()  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Scaled.Layer() for _ in range(4)))
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=D))

    def forward(self, x: Tensor) -> Tensor:
        return (self.layers(x) * self.scale).square().mean()  # type: ignore[no-any-return]


@dataclass
class Answer(ModelOutput):
    loss: Tensor | None = None
    hidden: Tensor | None = None
    several: tuple[Tensor, ...] | None = None


class Called(nn.Module):
    """Nested tensors in, options of every kind; nested tensors out, in the form asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(8, 8)

    def forward(
        self, xs: list[Any], mask: Tensor | None = None, *, scale: float = 1.0, mode: str = "mean", twice: bool = False,
        form: str = "dict",
    ) -> Any:  # fmt: skip
        h = self.layer(xs[0]) + xs[1]["b"]
        if mask is not None:
            h = h.masked_fill(mask, 0.0)
        h = h * (2 * scale if twice else scale)
        loss = h.square().mean() if mode == "mean" else h.square().sum()
        if form == "answer":
            return Answer(loss=loss, hidden=h, several=(h.sum(1), h[:, 0]))
        if form == "tuple":
            return loss, h, [h.sum(1)]
        return {"loss": loss, "hidden": h, "deep": [h.sum(1), (h.mean(), 3)], "nothing": None}


class Counted(nn.Module):
    """Integers, truth values and small integers among the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8, dtype=D)

    def forward(self, ids: Tensor, keep: Tensor, weights: Tensor) -> Tensor:
        return (self.embed(ids) * keep.unsqueeze(-1) * weights.unsqueeze(-1)).square().mean()  # type: ignore[no-any-return]


def pairs() -> tuple[Tensor, Tensor]:
    return normal(8, 8), normal(8, 4)


def mixed(**options: Any) -> dict[str, Any]:
    return {"xs": [normal(8, 8), {"b": normal(8, 8)}], **options}


Made: TypeAlias = tuple[nn.Module, Any]
CASES: dict[str, Callable[[], Made]] = {
    "tied": lambda: (Tied(), (torch.randint(0, 16, (8, 5)), torch.randint(0, 16, (8, 5)))),
    "reused": lambda: (Reused(), (normal(8, 8),)),
    "residual": lambda: (Residual(), pairs()),
    "auxiliary": lambda: (Auxiliary(), pairs()),
    "averages": lambda: (Averages(), (normal(8, 8),)),
    "codebook": lambda: (Codebook(), (normal(8, 8),)),
    "moving": lambda: (Moving(), (normal(8, 8),)),
    "batch norm 1d": lambda: (Normed(lambda n: nn.BatchNorm1d(n, dtype=D)), pairs()),
    "batch norm 2d": lambda: (Normed(lambda n: nn.BatchNorm2d(n, momentum=0.3, dtype=D), 3, 2), pairs()),
    "batch norm 3d": lambda: (Normed(lambda n: nn.BatchNorm3d(n, affine=False, dtype=D), 3, 1, 2), pairs()),
    "synchronised": lambda: (Normed(lambda n: nn.SyncBatchNorm(n, dtype=D), 5), pairs()),
    "no statistics": lambda: (
        Normed(lambda n: nn.BatchNorm1d(n, track_running_stats=False, dtype=D), 5), pairs()),
    "evaluated": lambda: (Normed(lambda n: nn.BatchNorm1d(n, dtype=D).eval()), pairs()),
    "scaled": lambda: (Scaled(), (normal(8, 8),)),
    "nested": lambda: (Called(), mixed()),
    "options": lambda: (Called(), mixed(mask=torch.rand(8, 8) > 0.5, scale=2.0, mode="sum", twice=True, form="answer")),
    "absent": lambda: (Called(), ([normal(8, 8), {"b": normal(8, 8)}], None)),
    "tuple": lambda: (Called(), mixed(form="tuple")),
    "expanded": lambda: (Called(), ([normal(8, 1).expand(8, 8), {"b": normal(8, 8).t()}],)),
    "sliced": lambda: (Called(), ([normal(16, 16)[::2, ::2], {"b": normal(8, 8, 2)[..., 1]}],)),
    "integers": lambda: (
        Counted(),
        (torch.randint(0, 10, (8, 5)), torch.rand(8, 5) > 0.5, torch.arange(40, dtype=torch.int32).view(8, 5)),
    ),
}  # fmt: skip


def made(name: str) -> Made:
    """The model and its example inputs, of the same numbers every time; a family's by its name."""
    torch.manual_seed(0)
    if name in FAMILIES:
        return FAMILIES[name].build(), FAMILIES[name].batch()
    return CASES[name]()
