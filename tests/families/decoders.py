"""Decoder-only language models."""

from __future__ import annotations

from typing import Any

from tests.families.family import SEQ, VOCAB, Family, causal_batch, from_transformers

_SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": VOCAB,
    "max_position_embeddings": 2 * SEQ, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2}


def _causal(name: str, model: str, config: str, **changes: Any) -> Family:
    return Family(name=name, build=from_transformers(model, config, **changes), batch=causal_batch)


DECODERS: tuple[Family, ...] = (
    _causal("gpt2", "GPT2LMHeadModel", "GPT2Config", n_layer=2, n_embd=32, n_head=4, vocab_size=VOCAB,
            n_positions=SEQ, bos_token_id=None, eos_token_id=None),
    _causal("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", **_SMALL),
    _causal("llama", "LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    _causal("mistral", "MistralForCausalLM", "MistralConfig", **_GROUPED, sliding_window=8),
    _causal("qwen2", "Qwen2ForCausalLM", "Qwen2Config", **_GROUPED, tie_word_embeddings=True),
    _causal("qwen3", "Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, head_dim=8),
    _causal("gemma2", "Gemma2ForCausalLM", "Gemma2Config", **_GROUPED, head_dim=8, sliding_window=8),
    _causal("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", **_GROUPED, head_dim=8, sliding_window=8),
    _causal("phi3", "Phi3ForCausalLM", "Phi3Config", **_GROUPED),
    _causal("falcon", "FalconForCausalLM", "FalconConfig", num_hidden_layers=2, hidden_size=32,
            num_attention_heads=4, vocab_size=VOCAB, bos_token_id=None, eos_token_id=None),
    _causal("opt", "OPTForCausalLM", "OPTConfig", num_hidden_layers=2, hidden_size=32, num_attention_heads=4,
            ffn_dim=48, vocab_size=VOCAB, max_position_embeddings=2 * SEQ, word_embed_proj_dim=32,
            bos_token_id=None, eos_token_id=None, pad_token_id=1),
    _causal("bloom", "BloomForCausalLM", "BloomConfig", n_layer=2, hidden_size=32, n_head=4, vocab_size=VOCAB,
            bos_token_id=None, eos_token_id=None),
    _causal("olmo2", "Olmo2ForCausalLM", "Olmo2Config", **_GROUPED),
    _causal("granite", "GraniteForCausalLM", "GraniteConfig", **_GROUPED),
    _causal("mamba", "MambaForCausalLM", "MambaConfig", num_hidden_layers=2, hidden_size=32, state_size=4,
            vocab_size=VOCAB, time_step_rank=4, bos_token_id=None, eos_token_id=None, pad_token_id=0),
)  # fmt: skip
