"""GPT-2 as published: 124 million parameters, the output projection tied to the token embedding.

Dropout is 0.0 where the published configuration has 0.1, so that runs are quick to compare and attention stays fused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.zoo.entry import Entry

if TYPE_CHECKING:
    from torch import nn


def make_gpt2(layers: int) -> nn.Module:
    """``GPT2LMHeadModel`` on meta; the sizes are those of the model card of ``openai-community/gpt2``."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=50257,
        n_positions=1024,
        n_embd=768,
        n_layer=layers,
        n_head=12,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        return GPT2LMHeadModel(config)


GPT2 = Entry(
    name="gpt2",
    layers=12,
    batch_size=64,
    seq_len=1024,
    longest=1024,
    inputs=("input_ids", "labels"),
    make=make_gpt2,
)
