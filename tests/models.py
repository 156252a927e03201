"""Tiny transformers for tests: unmodified classes of transformers, float64, two layers, no dropout.

Labels differ in number on every sample; ``SPARSE`` leaves the first half of the batch without any, so
that a rank and several microbatches have nothing to learn from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, SEQ, VOCAB, LAYERS = 8, 12, 64, 2


def tokens(seed: int = 1) -> Tensor:
    return torch.randint(0, VOCAB, (BATCH, SEQ), generator=torch.Generator().manual_seed(seed))


def labels(*, empty: int = 1) -> Tensor:
    """Sample i keeps i + 3 labels; the first ``empty`` samples keep none."""
    made = tokens(2)
    for sample in range(BATCH):
        made[sample, sample + 3 :] = -100
    made[:empty] = -100
    return made


def padding() -> Tensor:
    mask = torch.ones(BATCH, SEQ, dtype=torch.int64)
    for sample in range(BATCH):
        mask[sample, SEQ - sample :] = 0
    return mask


def exact_loss(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
    """transformers' loss of a causal model, without its cast to float32."""
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, vocab_size), shifted.view(-1), ignore_index=-100)


def gpt2(layers: int = LAYERS, *, exact: bool = True, **changes: Any) -> nn.Module:
    """Learned positions, fused QKV, biases, input and output embedding tied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "n_embd": 32, "n_head": 4, "vocab_size": VOCAB, "n_positions": SEQ}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(**{**sizes, **quiet, **changes}))
    if exact:
        model.loss_function = exact_loss
    return _ready(model)


def llama(layers: int = LAYERS, **changes: Any) -> nn.Module:
    """Rotary positions, RMSNorm and a loss that cast to float32; 8 query heads on 2 key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "num_hidden_layers": layers, "hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 2,
        "intermediate_size": 48, "vocab_size": VOCAB, "max_position_embeddings": SEQ,
    }  # fmt: skip
    return _ready(LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})))


def bert(layers: int = LAYERS, **changes: Any) -> nn.Module:
    """Post-norm, token types, a padding mask that stays a mask."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {
        "num_hidden_layers": layers, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64,
        "vocab_size": VOCAB, "max_position_embeddings": SEQ, "type_vocab_size": 2,
    }  # fmt: skip
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return _ready(BertForMaskedLM(BertConfig(**{**sizes, **quiet, **changes})))


def _ready(model: Any) -> nn.Module:
    """Weights that depend on the seed alone, none of them zero: a zero bias hides what happens to it."""
    generator = torch.Generator().manual_seed(0)
    model.config.use_cache = False
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise * 0.1 if parameter.dim() < 2 else noise * 0.05)
    return model  # type: ignore[no-any-return]


def gpt2_as_it_is(layers: int = LAYERS) -> nn.Module:
    """With transformers' own loss, which casts the logits to float32."""
    return gpt2(layers, exact=False)


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "gpt2": gpt2, "llama": llama, "bert": bert, "gpt2_as_it_is": gpt2_as_it_is,
}  # fmt: skip

# Gradients are exact to this; where it is 1e-6 the model itself computes in float32: LLaMA its norms, rotary
# tables and loss, GPT-2 its loss.
TOLERANCES = {"gpt2": 1e-10, "llama": 1e-6, "bert": 1e-10, "gpt2_as_it_is": 1e-6}


def inputs(name: str, *, empty: int = 1) -> dict[str, Tensor]:
    """A batch; ``empty`` samples have no label."""
    made = {"input_ids": tokens(), "labels": labels(empty=empty)}
    if name == "bert":
        made["attention_mask"] = padding()
    return made
