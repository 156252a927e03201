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
# For one GPU, the largest first: parameters, gradients and AdamW's state in bf16 take 8 bytes a parameter.
FOR_A_GPU = (
    Size(layers=40, width=5120, inner=13824, heads=40, vocabulary=32000, batch=1, length=4096),  # 13 B
    Size(layers=32, width=4096, inner=14336, heads=32, vocabulary=32000, batch=2, length=4096),  # 7.8 B
    Size(layers=28, width=3072, inner=8192, heads=24, vocabulary=32000, batch=2, length=4096),  # 3.4 B
    Size(layers=16, width=2048, inner=8192, heads=16, vocabulary=32000, batch=4, length=2048),  # 1.2 B
    Size(layers=12, width=1024, inner=4096, heads=16, vocabulary=32000, batch=4, length=1024),  # 0.3 B
)
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
    wide = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # never twice as large, not even for a moment
    try:
        with torch.device(device):
            model: nn.Module = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(wide)
    return model.train()


def batch(size: Size, index: int = 0) -> dict[str, Tensor]:
    """A global batch; another for every ``index``."""
    generator = torch.Generator().manual_seed(1 + index)
    tokens = torch.randint(0, size.vocabulary, (size.batch, size.length), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
