"""Real text that every machine has: the sources of Python's own standard library, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from autopar.ir.errors import UsageError

VOCABULARY = 256
"""A token is a byte."""


def standard_library(folder: Path | None = None) -> Tensor:
    """The modules of the standard library one after the other, in the order of their names; uint8 [bytes].

    Raises ``UsageError`` if ``folder`` (default: this Python's library) holds no sources.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if not text:
        raise UsageError(f"{folder} holds no Python sources to train on; run the demo with another Python")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch(text: Tensor, step: int, *, batch_size: int, seq_len: int) -> dict[str, Tensor]:
    """Global batch number ``step``: windows from random places, the same for everyone who asks."""
    if len(text) < seq_len:
        raise UsageError(f"the text has {len(text)} bytes, a window is {seq_len}; give a smaller --seq-len")
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - seq_len + 1, (batch_size, 1), generator=generator)
    tokens = text[starts + torch.arange(seq_len)].long()
    return {"input_ids": tokens, "labels": tokens}
