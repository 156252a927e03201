"""Llama 3 as published (8B and 70B): grouped-query attention, 128,256 tokens, embeddings not tied.

The published configurations have no dropout.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from autopar.zoo.entry import Entry

if TYPE_CHECKING:
    from torch import nn

LONGEST = 8192


def make_llama3(layers: int, *, hidden: int, heads: int, ffn: int) -> nn.Module:
    """``LlamaForCausalLM`` on meta; the sizes are those of ``meta-llama/Meta-Llama-3-8B`` and ``-70B``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        max_position_embeddings=LONGEST,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        bos_token_id=128000,
        eos_token_id=128001,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


LLAMA3_8B = Entry(
    name="llama3-8b",
    layers=32,
    batch_size=64,
    seq_len=LONGEST,
    longest=LONGEST,
    inputs=("input_ids", "labels"),
    make=functools.partial(make_llama3, hidden=4096, heads=32, ffn=14336),
)

LLAMA3_70B = Entry(
    name="llama3-70b",
    layers=80,
    batch_size=128,
    seq_len=LONGEST,
    longest=LONGEST,
    inputs=("input_ids", "labels"),
    make=functools.partial(make_llama3, hidden=8192, heads=64, ffn=28672),
)
