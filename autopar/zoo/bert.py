"""BERT-large as published, with its masked-language-model head: 335 million parameters.

Dropout is 0.0 where the published configuration has 0.1, so that runs are quick to compare and attention stays fused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.zoo.entry import Entry

if TYPE_CHECKING:
    from torch import nn


def make_bert_large(layers: int) -> nn.Module:
    """``BertForMaskedLM`` on meta; the sizes are those of ``google-bert/bert-large-uncased``."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=30522,
        hidden_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=512,
        type_vocab_size=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        return BertForMaskedLM(config)


BERT_LARGE = Entry(
    name="bert-large",
    layers=24,
    batch_size=256,
    seq_len=512,
    longest=512,
    inputs=("input_ids", "attention_mask", "labels"),
    make=make_bert_large,
)
