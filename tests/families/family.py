"""What a family is: a model and a batch of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BATCH, SEQ, VOCAB = 8, 12, 64


@dataclass(frozen=True, kw_only=True)
class Family:
    """``build()`` gives the model in float64; ``batch()`` its keyword inputs, labels included.

    ``tolerance``: 1e-10, or 1e-6 where the model computes in float32 by itself (its loss, norms or tables).
    ``loss_fn`` for models that return none; the batch then has an entry ``target``.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Any]]
    tolerance: float = 1e-6
    loss_fn: Callable[[Any, Tensor], Tensor] | None = None


def tokens(seed: int = 1, *, length: int = SEQ, vocab: int = VOCAB) -> Tensor:
    return torch.randint(0, vocab, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def labels(*, length: int = SEQ, vocab: int = VOCAB) -> Tensor:
    """Another number of labels on every sample, none on the first."""
    made = tokens(2, length=length, vocab=vocab)
    for sample in range(BATCH):
        made[sample, min(sample + 3, length) :] = -100
    made[0] = -100
    return made


def padding(*, length: int = SEQ) -> Tensor:
    mask = torch.ones(BATCH, length, dtype=torch.int64)
    for sample in range(BATCH):
        mask[sample, length - sample :] = 0
    return mask


def normal(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal_batch() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "labels": labels()}


def masked_batch() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "attention_mask": padding(), "labels": labels()}


def from_transformers(model_class: str, config_class: str, /, **config: Any) -> Callable[[], nn.Module]:
    """A builder of a transformers model with dropout 0 wherever its configuration has any."""

    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config_class)(**config)
        for part in (made, *(getattr(made, name, None) for name in ("text_config", "vision_config"))):
            for key in () if part is None else list(vars(part)):
                if ("drop" in key or "pdrop" in key) and isinstance(getattr(part, key), float):
                    setattr(part, key, 0.0)
        return settled(getattr(transformers, model_class)(made))

    return build


def settled(model: Any) -> nn.Module:
    """In float64 and training mode; weights depend on the seed alone, and none is zero."""
    generator = torch.Generator().manual_seed(0)
    if hasattr(model, "config"):
        model.config.use_cache = False
    model.double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise * (0.1 if parameter.dim() < 2 else 0.05))
    return model  # type: ignore[no-any-return]


def exactly(rename: Mapping[str, str], batch: Callable[[], dict[str, Tensor]]) -> Callable[[], dict[str, Tensor]]:
    """The batch with other names for its entries."""
    return lambda: {rename.get(name, name): tensor for name, tensor in batch().items()}
