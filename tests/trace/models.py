"""Tiny models: unmodified ones from transformers, and a few of our own."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

BATCH, SEQ, VOCAB = 2, 12, 40
Case = tuple[Any, Any]


def tokens() -> torch.Tensor:
    return torch.randint(1, VOCAB, (BATCH, SEQ))


def labels() -> torch.Tensor:
    made = tokens()
    made[0, :5] = -100
    return made


def padding() -> torch.Tensor:
    mask = torch.ones(BATCH, SEQ, dtype=torch.int64)
    mask[1, 8:] = 0
    return mask


def gpt2(**changes: Any) -> Case:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=4, vocab_size=VOCAB, n_positions=16, bos_token_id=0, eos_token_id=0,
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **changes},
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": labels()}


def _llama_sizes(layers: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip


def llama(layers: int = 2, **changes: Any) -> Case:
    config = transformers.LlamaConfig(**{**_llama_sizes(layers), **changes})
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens(), "labels": labels()}


def llama_padded() -> Case:
    model, inputs = llama()
    return model, {**inputs, "attention_mask": padding()}


def mistral(window: int | None = 4) -> Case:
    config = transformers.MistralConfig(**_llama_sizes(2), sliding_window=window, head_dim=8)
    return transformers.MistralForCausalLM(config), {"input_ids": tokens(), "labels": labels()}


def bert() -> Case:
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=4, intermediate_size=24, vocab_size=VOCAB,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    return model, {"input_ids": tokens(), "attention_mask": padding(), "labels": labels()}


def t5() -> Case:
    config = transformers.T5Config(  # type: ignore[call-arg]
        d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, vocab_size=VOCAB, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens(), "labels": labels()}


def vit() -> Case:
    config = transformers.ViTConfig(  # type: ignore[call-arg]
        num_hidden_layers=2, hidden_size=16, num_attention_heads=4, intermediate_size=24, image_size=8,
        patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(BATCH, 3, 8, 8), "labels": torch.tensor([1, 3])}
    return transformers.ViTForImageClassification(config), inputs


class Encoder(nn.Module):
    """torch's own encoder, causal by a float mask, with the loss in it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        logits = self.head(self.encoder(x, mask=mask))
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), target, label_smoothing=0.1)
        return {"logits": logits, "loss": loss}


def encoder() -> Case:
    return Encoder(), (torch.randn(BATCH, SEQ, 16), torch.randint(0, 5, (BATCH, SEQ)))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]


TRANSFORMERS = {
    "gpt2": gpt2, "llama": llama, "llama_padded": llama_padded, "mistral": mistral, "bert": bert,
    "t5": t5, "vit": vit, "encoder": encoder,
}  # fmt: skip
EAGER = {
    "llama_eager": lambda: llama(attn_implementation="eager"),
    "gpt2_eager": lambda: gpt2(attn_implementation="eager"),
}
