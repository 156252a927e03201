"""A user's function for verification: any size, real inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models import bert, gpt2, inputs


def tiny_gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    return gpt2(layers=3), inputs("gpt2")


def dropped_gpt2() -> nn.Module:
    """With dropout, in attention too."""
    return gpt2(resid_pdrop=0.1, attn_pdrop=0.1)


def tiny_bert() -> nn.Module:
    return bert()


def on_meta() -> tuple[nn.Module, dict[str, Tensor]]:
    model, batch = tiny_gpt2()
    return model, {name: tensor.to("meta") for name, tensor in batch.items()}


def perceptron() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Without a loss of its own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (torch.randn(8, 8), torch.randn(8, 4))
