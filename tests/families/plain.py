"""Models of plain torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar.nn
from tests.families.family import BATCH, SEQ, VOCAB, Family, causal_batch, labels, normal, settled, tokens


class Translator(nn.Module):
    """``nn.Transformer`` between two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCAB, 32)
        self.target = nn.Embedding(VOCAB, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> dict[str, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
        made = self.head(self.body(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True))
        return {"loss": F.cross_entropy(made.flatten(0, 1), labels.flatten()), "logits": made}


class Reader(nn.Module):
    """An LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32)
        self.body = nn.LSTM(32, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        made, _ = self.body(self.embedding(input_ids))
        return F.cross_entropy(self.head(made).flatten(0, 1), labels.flatten())


class Mixture(nn.Module):
    """Layers of experts, with choices dropped unless ``capacity_factor`` is None, and both auxiliary losses.

    ``router``: how experts are chosen.
    """

    def __init__(self, experts: int = 4, capacity_factor: float | None = 1.0, **router: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.experts = nn.ModuleList(
            autopar.nn.MoE(32, 48, experts, capacity_factor=capacity_factor, balance_loss=0.1, z_loss=0.1, **router)
            for _ in range(2)
        )
        self.head = nn.Linear(32, VOCAB)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden, auxiliary, dropped = self.embedding(input_ids), [], []
        for norm, experts in zip(self.norms, self.experts, strict=True):
            made, loss, lost = experts(norm(hidden))
            hidden = hidden + made
            auxiliary.append(loss)
            dropped.append(lost)
        loss = F.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())
        return {"loss": sum(auxiliary, loss), "dropped": torch.stack(dropped, dim=1)}


class _Scaled(torch.autograd.Function):
    """The identity, with a gradient twice as large: what a trace must not lose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


class Custom(nn.Module):
    """A multi-layer perceptron with a custom autograd function inside."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 48)
        self.down = nn.Linear(48, 32)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        hidden = _Scaled.apply(self.up(x).relu())
        return F.mse_loss(self.down(hidden), target)


PLAIN: tuple[Family, ...] = (
    Family(name="nn.Transformer", build=lambda: settled(Translator()), tolerance=1e-10,
           batch=lambda: {"source": tokens(), "target": tokens(5), "labels": labels()}),
    Family(name="lstm", build=lambda: settled(Reader()), tolerance=1e-10,
           batch=lambda: {"input_ids": tokens(), "labels": labels()}),
    Family(name="autopar.nn.MoE", build=lambda: settled(Mixture(top_k=2, normalize=True)), tolerance=1e-10,
           batch=causal_batch),
    Family(name="autopar.nn.MoE, prototypes", build=lambda: settled(Mixture(top_k=1, prototypes=2, activation="relu")),
           tolerance=1e-10, batch=causal_batch),
    Family(name="custom-autograd", build=lambda: settled(Custom()), tolerance=1e-10,
           batch=lambda: {"x": normal(BATCH, 32), "target": normal(BATCH, 32, seed=6)}),
)  # fmt: skip
_ = SEQ
