"""A transformers model before it is built: its class, its configuration, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autopar.zoo import kinds

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """``kind`` is a key of ``kinds.KINDS``: which inputs the model takes."""

    model_class: Any
    config: Any
    kind: str

    def build(self, device: str = "meta") -> nn.Module:
        """The model; on meta without weights, else as it initialises itself."""
        import torch

        with torch.device(device):
            model: nn.Module = self.model_class(self.config)
        return model

    def example(self, batch_size: int, seq_len: int) -> kinds.Inputs:
        """Example inputs of a global batch, on meta."""
        import torch

        return {
            name: torch.empty(each.shape, dtype=getattr(torch, each.dtype), device="meta")
            for name, each in kinds.inputs_of(self.kind, self.config, batch_size, seq_len).items()
        }

    def draw(self, batch_size: int, seq_len: int, seed: int) -> kinds.Inputs:
        """Random inputs that the model can compute with; every sample has another number of labels."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        found = kinds.inputs_of(self.kind, self.config, batch_size, seq_len)
        return {name: each.draw(generator) for name, each in found.items()}
