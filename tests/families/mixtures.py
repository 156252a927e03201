"""Decoders with a mixture of experts, each model with its own router.

``experts_implementation="eager"`` is what one device computes by itself: transformers' default takes float32 at most.
"""

from __future__ import annotations

from typing import Any

from tests.families.family import SEQ, VOCAB, Family, causal_batch, from_transformers

_SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 16, "vocab_size": VOCAB, "max_position_embeddings": 2 * SEQ, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None, "num_experts_per_tok": 2, "experts_implementation": "eager",
}  # fmt: skip


def _mixture(name: str, model: str, config: str, **changes: Any) -> Family:
    build = from_transformers(model, config, **{**_SMALL, **changes})
    return Family(name=name, build=build, batch=causal_batch)


def mixtral(experts: int = 4, **changes: Any) -> Family:
    """With another number of experts, or other changes, than the family has."""
    return _mixture("mixtral", "MixtralForCausalLM", "MixtralConfig", num_local_experts=experts, **changes)


MIXTURES: tuple[Family, ...] = (
    mixtral(),
    _mixture("qwen2-moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", num_experts=4, moe_intermediate_size=16,
             shared_expert_intermediate_size=24),
    _mixture("qwen3-moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", num_experts=8, moe_intermediate_size=16,
             head_dim=8, norm_topk_prob=True),
    _mixture("deepseek-v3", "DeepseekV3ForCausalLM", "DeepseekV3Config", n_routed_experts=8, moe_intermediate_size=16,
             num_hidden_layers=3, first_k_dense_replace=1, n_group=4, topk_group=2, n_shared_experts=1,
             num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
             v_head_dim=8, head_dim=8),
    _mixture("olmoe", "OlmoeForCausalLM", "OlmoeConfig", num_experts=4),
    _mixture("gpt-oss", "GptOssForCausalLM", "GptOssConfig", num_local_experts=4, head_dim=8, sliding_window=8),
    _mixture("granite-moe", "GraniteMoeForCausalLM", "GraniteMoeConfig", num_local_experts=4),
)  # fmt: skip
