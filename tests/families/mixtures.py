"""Decoders with a mixture of experts, each model with its own router.

``experts_implementation="eager"`` is what one device computes by itself: transformers' default takes float32 at most.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.families.family import SEQ, VOCAB, Family, causal_batch, from_transformers, masked_batch

_SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 16, "vocab_size": VOCAB, "max_position_embeddings": 2 * SEQ, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None, "num_experts_per_tok": 2, "experts_implementation": "eager",
}  # fmt: skip
GATED_LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 4, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip
"""Changes for a model with linear attention by a gated delta rule: one layer of it and one of attention."""


def mixture(name: str, model: str, config: str, **changes: Any) -> Family:
    build = from_transformers(model, config, **{**_SMALL, **changes})
    return Family(name=name, build=build, batch=causal_batch)


def mixtral(experts: int = 4, **changes: Any) -> Family:
    """With another number of experts, or other changes, than the family has."""
    return mixture("mixtral", "MixtralForCausalLM", "MixtralConfig", num_local_experts=experts, **changes)


def _dbrx() -> nn.Module:
    """Its feed-forward layers have a configuration of their own."""
    ffn = {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32}
    return from_transformers(
        "DbrxForCausalLM", "DbrxConfig", vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=2, max_seq_len=2 * SEQ,
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}, ffn_config=ffn,
    )()  # fmt: skip


def _switch() -> nn.Module:
    """The configuration takes float32 for the router at most."""
    model = from_transformers(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", vocab_size=VOCAB, d_model=32,
        num_heads=4, d_kv=8, d_ff=48, num_layers=4, num_sparse_encoder_layers=2, num_decoder_layers=4,
        num_sparse_decoder_layers=2, num_experts=2, expert_capacity=7, relative_attention_num_buckets=8,
        relative_attention_max_distance=16, decoder_start_token_id=0, pad_token_id=0, router_jitter_noise=0.0,
    )()  # fmt: skip
    for module in model.modules():
        if hasattr(module, "expert_capacity"):
            vars(module)["dtype"] = torch.float64
    return model


MIXTURES: tuple[Family, ...] = (
    mixtral(),
    mixture("qwen2-moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig", num_experts=4, moe_intermediate_size=16,
             shared_expert_intermediate_size=24),
    mixture("qwen3-moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", num_experts=8, moe_intermediate_size=16,
             head_dim=8, norm_topk_prob=True),
    mixture("deepseek-v3", "DeepseekV3ForCausalLM", "DeepseekV3Config", n_routed_experts=8, moe_intermediate_size=16,
             num_hidden_layers=3, first_k_dense_replace=1, n_group=4, topk_group=2, n_shared_experts=1,
             num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
             v_head_dim=8, head_dim=8),
    mixture("deepseek-v2", "DeepseekV2ForCausalLM", "DeepseekV2Config", n_routed_experts=8, moe_intermediate_size=16,
             first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=4, topk_group=2, n_shared_experts=1,
             num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
             v_head_dim=8),
    mixture("llama4", "Llama4ForCausalLM", "Llama4TextConfig", num_local_experts=4, intermediate_size_mlp=24,
             head_dim=8, num_hidden_layers=3, moe_layers=[1, 2], no_rope_layers=[1, 0, 1], attention_chunk_size=8,
             floor_scale=4),
    mixture("olmoe", "OlmoeForCausalLM", "OlmoeConfig", num_experts=4),
    mixture("gpt-oss", "GptOssForCausalLM", "GptOssConfig", num_local_experts=4, head_dim=8, sliding_window=8),
    mixture("granite-moe", "GraniteMoeForCausalLM", "GraniteMoeConfig", num_local_experts=4),
    mixture("qwen3-next", "Qwen3NextForCausalLM", "Qwen3NextConfig", **GATED_LINEAR),
    Family(name="dbrx", build=_dbrx, batch=causal_batch),
    mixture("longcat-flash", "LongcatFlashForCausalLM", "LongcatFlashConfig", num_layers=1, num_hidden_layers=2,
             ffn_hidden_size=24, expert_ffn_hidden_size=16, n_routed_experts=4, zero_expert_num=2, moe_topk=2,
             num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
             v_head_dim=8, head_dim=8),
    Family(name="switch", build=_switch, batch=masked_batch, tolerance=1e-10),  # its encoder asks for a mask
)  # fmt: skip
