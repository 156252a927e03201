"""Models that compute one thing in training and another in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.families import FAMILIES
from tests.models import bert, gpt2, inputs
from tests.state.networks import made as state_network

D = torch.float64


class Layer(nn.Module):
    """A residual layer that training may skip, each at a rate of its own, as vision transformers do."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32, dtype=D), nn.Linear(32, 16, dtype=D)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.down(F.gelu(self.up(x)))
        if self.training and self.rate:
            kept = 1 - self.rate
            h = h * torch.bernoulli(torch.full((x.shape[0], 1, 1), kept, dtype=x.dtype)) / kept
        return x + h


class Depth(nn.Module):
    """Layers that are equal in evaluation only, and a head that training alone has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(0.1 * i) for i in range(4))
        self.head, self.auxiliary = nn.Linear(16, 8, dtype=D), nn.Linear(16, 8, dtype=D)

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        middle = x
        for index, layer in enumerate(self.layers):
            x = layer(x)
            middle = x if index == 1 else middle
        out = self.head(x)
        loss = F.mse_loss(out, target)
        if self.training:
            return {"loss": loss + 0.3 * F.mse_loss(self.auxiliary(middle), target), "out": out}
        return {"loss": loss, "out": out.softmax(-1)}


class Scaled(nn.Module):
    """Layers that are equal in training only: evaluation weighs each by the share of steps that it takes part in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, dtype=D) for _ in range(4))
        self.shares = [1.0, 0.9, 0.8, 0.7]

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for share, layer in zip(self.shares, self.layers, strict=True):
            x = x + F.gelu(layer(x)) * (1.0 if self.training else share)
        return F.mse_loss(x, target)


class Always(nn.Module):
    """Drops in evaluation too, as Monte Carlo dropout does."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32, dtype=D), nn.Linear(32, 16, dtype=D)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.down(F.dropout(self.up(x), 0.5)), target)


def rows(width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(8, 4, 16, generator=generator, dtype=D)
    return {"x": x, "target": torch.randn(8, 4, width, generator=generator, dtype=D)}


def _depth() -> tuple[nn.Module, Any]:
    return Depth(), rows(8)


def _gpt2() -> tuple[nn.Module, Any]:
    return gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1), inputs("gpt2")


def _bert() -> tuple[nn.Module, Any]:
    return bert(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1), inputs("bert")


def _resnet() -> tuple[nn.Module, Any]:
    family = FAMILIES["resnet"]
    return family.build(), family.batch()


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gpt2": _gpt2, "gpt2 without dropout": lambda: (gpt2(), inputs("gpt2")), "bert": _bert,
    "batch norm": lambda: state_network("residual"), "resnet": _resnet, "depth": _depth,
    "always": lambda: (Always(), rows(16)), "scaled": lambda: (Scaled(), rows(16)),
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return NETWORKS[name]()
