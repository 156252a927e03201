"""What models take, by kind: names, shapes and ranges of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autopar.ir.errors import UsageError

if TYPE_CHECKING:
    from torch import Generator, Tensor

Inputs = dict[str, "Tensor"]
IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Described:
    """One input. ``below``: integers from 0 up to this; 0 means normal numbers.

    ``padded``: what fills the end of each sequence, another length for every sample.
    """

    shape: tuple[int, ...]
    below: int = 0
    padded: int | None = None

    @property
    def dtype(self) -> str:
        return "int64" if self.below else "float32"

    def draw(self, generator: Generator) -> Tensor:
        import torch

        if not self.below:
            return torch.randn(self.shape, generator=generator)
        low = 1 if self.below == 2 else 0  # a mask is all ones up to its padding
        made = torch.randint(low, self.below, self.shape, generator=generator)
        if self.padded is not None:
            for sample, row in enumerate(made):
                row[max(1, len(row) - 1 - sample % len(row)) :] = self.padded
        return made


def _tokens(config: Any, batch: int, length: int) -> Described:
    return Described(shape=(batch, length), below=config.vocab_size)


def _labels(config: Any, batch: int, length: int) -> Described:
    return Described(shape=(batch, length), below=config.vocab_size, padded=IGNORED)


def _causal(config: Any, batch: int, length: int) -> dict[str, Described]:
    return {"input_ids": _tokens(config, batch, length), "labels": _labels(config, batch, length)}


def _masked(config: Any, batch: int, length: int) -> dict[str, Described]:
    found = _causal(config, batch, length)
    mask = Described(shape=(batch, length), below=2, padded=0)
    return {"input_ids": found["input_ids"], "attention_mask": mask, "labels": found["labels"]}


def _image(config: Any, batch: int, length: int) -> dict[str, Described]:
    size, channels = getattr(config, "image_size", 224), config.num_channels
    return {"pixel_values": Described(shape=(batch, channels, size, size)),
            "labels": Described(shape=(batch,), below=config.num_labels)}  # fmt: skip


def _speech(config: Any, batch: int, length: int) -> dict[str, Described]:
    """Two frames make one position of the encoder."""
    sound = Described(shape=(batch, config.num_mel_bins, 2 * config.max_source_positions))
    return {"input_features": sound, "labels": _labels(config, batch, length)}


KINDS: dict[str, Callable[[Any, int, int], dict[str, Described]]] = {
    "causal": _causal, "masked": _masked, "translation": _masked, "image": _image, "speech": _speech,
}  # fmt: skip


def inputs_of(kind: str, config: Any, batch_size: int, seq_len: int) -> dict[str, Described]:
    """The inputs of a model of this kind, for a global batch."""
    return KINDS[kind](config, batch_size, seq_len)


def check_sizes(name: str, sizes: dict[str, int], *, longest: int | None) -> None:
    """Raise ``UsageError`` naming the first size that the model ``name`` cannot have."""
    for option, size in sizes.items():
        if size < 1:
            raise UsageError(f"{name}: --{option} is {size}; it must be 1 or more")
    seq_len = sizes.get("seq-len", 1)
    if longest is not None and seq_len > longest:
        raise UsageError(
            f"{name}: --seq-len is {seq_len}, but the model has {longest} positions; give {longest} or less",
            details={"model": name, "seq_len": seq_len, "longest": longest},
        )
