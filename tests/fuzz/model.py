"""A random model: an embedding or a projection, random layers with or without residuals, and a random loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.fuzz.layers import COUPLING, LAYERS, Experts, Layer


@dataclass(frozen=True)
class Sizes:
    batch: int
    seq: int
    dim: int
    classes: int

    @classmethod
    def draw(cls, rng: Random) -> Sizes:
        return cls(rng.choice((2, 4, 6, 8)), rng.choice((2, 3, 4, 6, 8)), rng.choice((4, 6, 8, 12)),
                   rng.choice((5, 6, 7, 8, 12)))  # fmt: skip


class Stack(nn.Module):
    """Layers one after the other; ``repeat`` times with parameters of their own each time."""

    def __init__(self, kinds: list[type[Layer]], seeds: list[int], residual: list[bool], sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [kind(Random(seed), sizes.seq, sizes.dim) for kind, seed in zip(kinds, seeds, strict=True)]
        )
        self.residual = residual

    def forward(self, x: Tensor, auxiliary: Tensor | None) -> tuple[Tensor, Tensor | None]:
        for layer, residual in zip(self.layers, self.residual, strict=True):
            made = layer(x)
            if isinstance(layer, Experts):
                made, loss = made
                auxiliary = loss if auxiliary is None else auxiliary + loss
            x = x + made if residual else made
        return x, auxiliary


class Model(nn.Module):
    """``forward(ids or x, labels) -> loss``; a function of the seed alone. ``layers``: kinds of them."""

    def __init__(self, rng: Random, sizes: Sizes, layers: Sequence[type[Layer]] = LAYERS) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = rng.random() < 0.6
        self.tied = self.tokens and rng.random() < 0.4
        if self.tokens:
            self.embed = nn.Embedding(sizes.classes, sizes.dim, dtype=torch.float64)
        else:
            self.enter = nn.Linear(3, sizes.dim, dtype=torch.float64)
        self.place = nn.Parameter(torch.randn(sizes.seq, sizes.dim, dtype=torch.float64) * 0.1)
        kinds = [rng.choice(layers) for _ in range(rng.choice((1, 2, 3, 4)))]
        if rng.random() < 0.1:
            kinds.append(rng.choice(COUPLING))
        seeds = [rng.randrange(10**6) for _ in kinds]
        residual = [rng.random() < 0.6 for _ in kinds]
        self.stacks = nn.ModuleList([Stack(kinds, seeds, residual, sizes) for _ in range(rng.choice((1, 1, 2, 3)))])
        self.head = nn.Linear(sizes.dim, sizes.classes, bias=rng.random() < 0.5, dtype=torch.float64)
        if self.tied:
            self.head.weight = self.embed.weight
        self.loss = rng.choice(("mean", "sum", "smooth", "weighted", "rows", "square", "pooled", "soft"))
        self.register_buffer("weights", torch.rand(sizes.classes, dtype=torch.float64) + 0.2)
        self.kinds = [kind.__name__ for kind in kinds]

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h: Tensor = (self.embed(x) if self.tokens else self.enter(x)) + self.place
        auxiliary: Tensor | None = None
        for stack in self.stacks:
            h, auxiliary = stack(h, auxiliary)
        loss = self._loss(h, labels)
        return loss if auxiliary is None else loss + auxiliary

    def _loss(self, h: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.head(h)
        flat, targets = logits.view(-1, self.sizes.classes), labels.view(-1)
        assert isinstance(self.weights, Tensor)
        if self.loss == "square":
            return logits.square().mean() + h.mean() * 0.1
        if self.loss == "pooled":
            return F.cross_entropy(logits.mean(1), labels[:, 0], ignore_index=-1)
        if self.loss == "smooth":
            return F.cross_entropy(flat, targets, self.weights, ignore_index=-1, label_smoothing=0.1)
        if self.loss == "weighted":
            return F.cross_entropy(flat, targets, self.weights, ignore_index=-1) + flat.square().mean() * 0.01
        if self.loss == "rows":
            rows = F.cross_entropy(flat, targets, ignore_index=-1, reduction="none")
            return (rows * rows).sum() / targets.numel()
        if self.loss == "soft":
            return F.cross_entropy(flat, flat.detach().flip(0).softmax(-1))
        return F.cross_entropy(flat, targets, ignore_index=-1, reduction=self.loss)

    def inputs(self, rng: Random) -> dict[str, Tensor]:
        """A batch; some labels are ignored, none of the first position's."""
        made = torch.Generator().manual_seed(rng.randrange(10**6))
        shape = (self.sizes.batch, self.sizes.seq)
        labels = torch.randint(0, self.sizes.classes, shape, generator=made)
        labels[:, 1:][torch.rand((shape[0], shape[1] - 1), generator=made) < 0.3] = -1
        if self.tokens:
            return {"x": torch.randint(0, self.sizes.classes, shape, generator=made), "labels": labels}
        return {"x": torch.randn((*shape, 3), generator=made, dtype=torch.float64), "labels": labels}
