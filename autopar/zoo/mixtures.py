"""Mixtures of experts of the zoo: sizes as published."""

from __future__ import annotations

from typing import Any

from autopar.zoo.entry import Entry

# mistralai/Mixtral-8x7B-v0.1: 46.7 billion parameters, 2 of 8 experts for each token.
MIXTRAL_8X7B = Entry(
    name="mixtral-8x7b", model_class="MixtralForCausalLM", config_class="MixtralConfig", kind="causal",
    batch_size=64, seq_len=4096, longest=32768,
    config={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": False,
    },
)  # fmt: skip

# Qwen/Qwen3-30B-A3B: 30.5 billion parameters, 8 of 128 experts for each token.
QWEN3_30B_A3B = Entry(
    name="qwen3-30b-a3b", model_class="Qwen3MoeForCausalLM", config_class="Qwen3MoeConfig", kind="causal",
    batch_size=64, seq_len=4096, longest=40960,
    config={
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": False,
    },
)  # fmt: skip

# deepseek-ai/DeepSeek-V3: 671 billion parameters without the layer that predicts a second token; for each token 8 of
# 256 experts, out of 4 of 8 groups, and one for all of them.
DEEPSEEK_V3 = Entry(
    name="deepseek-v3", model_class="DeepseekV3ForCausalLM", config_class="DeepseekV3Config", kind="causal",
    batch_size=2048, seq_len=4096, longest=163840,
    config={
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "norm_topk_prob": True, "max_position_embeddings": 163840,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 4096,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    },
)  # fmt: skip


def _m6(name: str, *, layers: int, experts: int, prototypes: int, ffn: int, batch_size: int) -> Entry:
    """M6-MoE: width 1024, 16 heads (``m6.py``); 8 samples a GPU."""
    config: dict[str, Any] = {
        "vocab_size": 21128, "hidden_size": 1024, "num_hidden_layers": layers, "num_attention_heads": 16,
        "intermediate_size": ffn, "num_experts": experts, "prototypes": prototypes,
    }  # fmt: skip
    return Entry(
        name=name, home="autopar.zoo.m6", model_class="M6MoEForCausalLM", config_class="M6MoEConfig", kind="causal",
        batch_size=batch_size, seq_len=512, longest=1024, config=config,
    )  # fmt: skip


# Layers, experts and their width as published: M6-T (arXiv 2105.15082) on 128 and 480 V100, M6-10T (arXiv 2110.03888),
# with 80 prototypes, on 512. M6-T compares several numbers of prototypes at equal capacity; 2 stands here.
M6_MOE_100B = _m6("m6-moe-100b", layers=24, experts=512, prototypes=2, ffn=4096, batch_size=1024)
M6_MOE_1T = _m6("m6-moe-1t", layers=24, experts=960, prototypes=2, ffn=21248, batch_size=3840)
M6_MOE_10T = _m6("m6-moe-10t", layers=48, experts=10240, prototypes=80, ffn=9984, batch_size=4096)

MIXTURES = (MIXTRAL_8X7B, QWEN3_30B_A3B, DEEPSEEK_V3, M6_MOE_100B, M6_MOE_1T, M6_MOE_10T)
