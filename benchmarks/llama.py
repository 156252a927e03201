"""The model that is measured: LLaMA of Hugging Face, random weights, and its batches."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Size:
    """``batch`` sequences of ``length`` tokens are the global batch."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int
    batch: int
    length: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in asdict(self).items())


M50 = Size(layers=8, width=512, inner=1536, heads=8, vocabulary=24576, batch=2, length=256)
TINY = Size(layers=2, width=64, inner=128, heads=4, vocabulary=512, batch=2, length=32)


def llama(size: Size, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """The same weights on every call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(  # type: ignore[call-arg]  # transformers' own arguments are not in its types
        hidden_size=size.width, intermediate_size=size.inner, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.heads, vocab_size=size.vocabulary,
        max_position_embeddings=size.length, use_cache=False, attn_implementation="sdpa", tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model: nn.Module = LlamaForCausalLM(config)
    return model.train().to(dtype=dtype)


def batch(size: Size, index: int = 0) -> dict[str, Tensor]:
    """A global batch; another for every ``index``."""
    generator = torch.Generator().manual_seed(1 + index)
    tokens = torch.randint(0, size.vocabulary, (size.batch, size.length), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
