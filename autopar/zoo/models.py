"""The models of the zoo as data: sizes as published.

Dropout is 0.0 where the published configuration has another, so that plans do not depend on it.
"""

from __future__ import annotations

from typing import Any

from autopar.zoo.entry import Entry

# google-bert/bert-large-uncased: 335 million parameters with its masked-language-model head.
BERT_LARGE = Entry(
    name="bert-large", model_class="BertForMaskedLM", config_class="BertConfig", kind="masked",
    batch_size=256, seq_len=512, longest=512,
    config={
        "vocab_size": 30522, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096, "max_position_embeddings": 512, "type_vocab_size": 2,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "tie_word_embeddings": True,
    },
)  # fmt: skip

# openai-community/gpt2: 124 million parameters, the output projection tied to the token embedding.
GPT2 = Entry(
    name="gpt2", model_class="GPT2LMHeadModel", config_class="GPT2Config", kind="causal",
    batch_size=64, seq_len=1024, longest=1024,
    config={
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True,
    },
)  # fmt: skip

# M6-10B (arXiv 2103.00823): 50 layers of width 4096, which are its 10 billion parameters, as a causal transformer over
# text; the vocabulary of Chinese BERT. What it embeds pictures with is left out.
M6_10B = Entry(
    name="m6-10b", model_class="GPT2LMHeadModel", config_class="GPT2Config", kind="causal",
    batch_size=64, seq_len=512, longest=1024,
    config={
        "vocab_size": 21128, "n_positions": 1024, "n_embd": 4096, "n_layer": 50, "n_head": 64, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None,
    },
)  # fmt: skip

# google-t5/t5-large: 738 million parameters; encoder, decoder, relative positions, tied embeddings.
T5_LARGE = Entry(
    name="t5-large", model_class="T5ForConditionalGeneration", config_class="T5Config", kind="translation",
    batch_size=128, seq_len=512,
    config={
        "vocab_size": 32128, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_decoder_layers": 24,
        "num_heads": 16, "relative_attention_num_buckets": 32, "dropout_rate": 0.0, "decoder_start_token_id": 0,
        "feed_forward_proj": "relu", "tie_word_embeddings": True,
    },
)  # fmt: skip

# google/vit-large-patch16-224: 304 million parameters with its classifier.
VIT_LARGE = Entry(
    name="vit-large", model_class="ViTForImageClassification", config_class="ViTConfig", kind="image", batch_size=1024,
    config={
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
        "image_size": 224, "patch_size": 16, "num_labels": 1000, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
)  # fmt: skip

# microsoft/resnet-50 with 100,000 classes, as in Whale's large-scale classification.
RESNET50_100K = Entry(
    name="resnet50-100k", model_class="ResNetForImageClassification", config_class="ResNetConfig", kind="image",
    batch_size=1024,
    config={
        "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3],
        "layer_type": "bottleneck", "num_labels": 100_000,
    },
)  # fmt: skip

# openai/whisper-large: 1.54 billion parameters.
WHISPER_LARGE = Entry(
    name="whisper-large", model_class="WhisperForConditionalGeneration", config_class="WhisperConfig", kind="speech",
    batch_size=64, seq_len=448, longest=448,
    config={
        "vocab_size": 51865, "num_mel_bins": 80, "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32,
        "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120, "max_source_positions": 1500, "max_target_positions": 448, "dropout": 0.0,
    },
)  # fmt: skip


def _llama3(name: str, *, layers: int, hidden: int, heads: int, ffn: int, batch_size: int, longest: int) -> Entry:
    """Llama 3 (meta-llama): grouped-query attention, 128,256 tokens, embeddings not tied, no dropout."""
    config: dict[str, Any] = {
        "vocab_size": 128256, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "max_position_embeddings": longest,
        "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": 128000, "eos_token_id": 128001, "tie_word_embeddings": False,
    }  # fmt: skip
    return Entry(
        name=name, model_class="LlamaForCausalLM", config_class="LlamaConfig", kind="causal",
        batch_size=batch_size, seq_len=8192, longest=longest, config=config,
    )  # fmt: skip


LLAMA3_8B = _llama3("llama3-8b", layers=32, hidden=4096, heads=32, ffn=14336, batch_size=64, longest=8192)
LLAMA3_70B = _llama3("llama3-70b", layers=80, hidden=8192, heads=64, ffn=28672, batch_size=128, longest=8192)
LLAMA3_405B = _llama3("llama3-405b", layers=126, hidden=16384, heads=128, ffn=53248, batch_size=256, longest=131072)

# mistralai/Mixtral-8x7B-v0.1: 46.7 billion parameters, 2 of 8 experts a token.
MIXTRAL_8X7B = Entry(
    name="mixtral-8x7b", model_class="MixtralForCausalLM", config_class="MixtralConfig", kind="causal",
    batch_size=128, seq_len=4096, longest=32768,
    config={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": None, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
)  # fmt: skip

# Qwen/Qwen3-30B-A3B: 30.5 billion parameters, 8 of 128 experts a token.
QWEN3_30B_A3B = Entry(
    name="qwen3-30b-a3b", model_class="Qwen3MoeForCausalLM", config_class="Qwen3MoeConfig", kind="causal",
    batch_size=128, seq_len=4096, longest=40960,
    config={
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "attention_bias": False,
        "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
)  # fmt: skip

# deepseek-ai/DeepSeek-V3: 671 billion parameters without its multi-token prediction; 8 of 256 experts and a shared one,
# latent attention, the first three layers dense.
DEEPSEEK_V3 = Entry(
    name="deepseek-v3", model_class="DeepseekV3ForCausalLM", config_class="DeepseekV3Config", kind="causal",
    batch_size=512, seq_len=4096, longest=163840,
    config={
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 163840,
        "rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 4096,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    },
)  # fmt: skip


def _m6_moe(name: str, *, layers: int, experts: int, prototypes: int, ffn: int, batch_size: int) -> Entry:
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
M6_MOE_100B = _m6_moe("m6-moe-100b", layers=24, experts=512, prototypes=2, ffn=4096, batch_size=1024)
M6_MOE_1T = _m6_moe("m6-moe-1t", layers=24, experts=960, prototypes=2, ffn=21248, batch_size=3840)
M6_MOE_10T = _m6_moe("m6-moe-10t", layers=48, experts=10240, prototypes=80, ffn=9984, batch_size=4096)

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        GPT2, BERT_LARGE, T5_LARGE, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, VIT_LARGE, WHISPER_LARGE, RESNET50_100K, M6_10B,
        MIXTRAL_8X7B, QWEN3_30B_A3B, DEEPSEEK_V3, M6_MOE_100B, M6_MOE_1T, M6_MOE_10T,
    )
}  # fmt: skip
