"""M6-MoE (M6-T, Yang et al. 2021, arXiv 2105.15082): a causal transformer whose feed-forward networks are experts.

Text only: what M6 embeds pictures with is left out, as in ``m6-10b``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import CausalLMOutput

from autopar.nn import MoE


class M6MoEConfig(PretrainedConfig):
    """Sizes of a model. ``prototypes``: groups of experts, of each of which a token gets one."""

    model_type = "m6-moe"

    def __init__(
        self, *, vocab_size: int, hidden_size: int, num_hidden_layers: int, num_attention_heads: int,
        intermediate_size: int, num_experts: int, prototypes: int, capacity_factor: float = 1.25,
        max_position_embeddings: int = 1024, **rest: Any,
    ) -> None:  # fmt: skip
        super().__init__(**rest)
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads, self.intermediate_size = num_attention_heads, intermediate_size
        self.num_experts, self.prototypes, self.capacity_factor = num_experts, prototypes, capacity_factor
        self.max_position_embeddings, self.tie_word_embeddings = max_position_embeddings, True

    @property
    def num_experts_per_tok(self) -> int:
        return self.prototypes


class M6MoEForCausalLM(nn.Module):
    """Tokens and labels to a loss, the balance losses of all layers in it. Embedding and output share their weight."""

    def __init__(self, config: M6MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        """What the modules' own initialisers leave too wide for an output that is tied to the embedding."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, input_ids: Tensor, labels: Tensor) -> CausalLMOutput:
        """Both [batch, length]; labels of -100 do not count."""
        hidden = self.embedding(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        auxiliary: Tensor | float = 0.0
        for layer in self.layers:
            hidden, loss = layer(hidden)
            auxiliary = auxiliary + loss
        logits = F.linear(self.norm(hidden), self.embedding.weight)
        shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1).float(), shifted.flatten())
        return CausalLMOutput(loss=loss + auxiliary, logits=logits)


class _Layer(nn.Module):
    def __init__(self, config: M6MoEConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)
        self.moe_norm = nn.LayerNorm(config.hidden_size)
        self.moe = MoE(
            config.hidden_size, config.intermediate_size, config.num_experts, top_k=1, prototypes=config.prototypes,
            activation="gelu", capacity_factor=config.capacity_factor,
        )  # fmt: skip

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        x = self.attention_norm(hidden)
        made = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        q, k, v = (part.transpose(1, 2) for part in made)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        out, loss, _ = self.moe(self.moe_norm(hidden))
        return hidden + out, loss
