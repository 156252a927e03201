"""The models of the zoo as data: sizes as published.

Dropout is 0.0 where the published configuration has another, so that plans do not depend on it.
"""

from __future__ import annotations

from typing import Any

from autopar.zoo.entry import Entry
from autopar.zoo.mixtures import MIXTURES

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

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        GPT2, BERT_LARGE, T5_LARGE, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, VIT_LARGE, WHISPER_LARGE, RESNET50_100K, M6_10B,
        *MIXTURES,
    )
}  # fmt: skip
