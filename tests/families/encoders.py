"""Encoders, and encoders with a decoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.families.family import (
    BATCH,
    SEQ,
    VOCAB,
    Family,
    from_transformers,
    labels,
    masked_batch,
    normal,
)

_SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": VOCAB,
    "max_position_embeddings": 2 * SEQ, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_BOTH: dict[str, Any] = {
    "encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": VOCAB,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "dropout": 0.0,
}  # fmt: skip


def _masked(name: str, model: str, config: str, **changes: Any) -> Family:
    return Family(name=name, build=from_transformers(model, config, **changes), batch=masked_batch)


def _speech() -> dict[str, Tensor]:
    return {"input_features": normal(BATCH, 8, 24), "labels": labels()}


ENCODERS: tuple[Family, ...] = (
    _masked("bert", "BertForMaskedLM", "BertConfig", **_SMALL),
    _masked("roberta", "RobertaForMaskedLM", "RobertaConfig", **_SMALL),
    _masked("deberta-v2", "DebertaV2ForMaskedLM", "DebertaV2Config", **_SMALL, relative_attention=True,
            pos_att_type=["p2c", "c2p"], position_buckets=4, max_relative_positions=-1, legacy=False),
    _masked("modernbert", "ModernBertForMaskedLM", "ModernBertConfig", **_SMALL, local_attention=8,
            global_attn_every_n_layers=2, sep_token_id=None, cls_token_id=None, reference_compile=False),
    _masked("t5", "T5ForConditionalGeneration", "T5Config", num_layers=2, d_model=32, num_heads=4, d_kv=8, d_ff=48,
            vocab_size=VOCAB, relative_attention_num_buckets=8, relative_attention_max_distance=16,
            decoder_start_token_id=0, pad_token_id=0),
    _masked("bart", "BartForConditionalGeneration", "BartConfig", **_BOTH, max_position_embeddings=2 * SEQ),
    Family(name="whisper", batch=_speech, build=from_transformers(
        "WhisperForConditionalGeneration", "WhisperConfig", **_BOTH, num_mel_bins=8, max_source_positions=12,
        max_target_positions=2 * SEQ)),
)  # fmt: skip
