"""Tiny models with linear attention, in float64 where they do not cast by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families.family import Family
from tests.families.mixtures import GATED_LINEAR, mixture

_KIMI = {
    "layer_types": GATED_LINEAR["layer_types"], "linear_num_heads": 4, "linear_head_dim": 8, "num_local_experts": 4,
    "moe_intermediate_size": 16, "mlp_layer_types": ["dense", "sparse"], "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
# By the stem of their names: that of the configuration, and its changes.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3Next": ("Config", GATED_LINEAR),
    "Qwen3_5": ("TextConfig", GATED_LINEAR),
    "Qwen3_5Moe": ("TextConfig", GATED_LINEAR),
    "OlmoHybrid": ("Config", GATED_LINEAR | {"linear_num_key_heads": 4}),
    "KimiLinear": ("Config", _KIMI),
}


def linear(name: str, **changes: Any) -> Family:
    """Skips where this version of transformers has no such model."""
    config, given = MODELS[name]
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, model := f"{name}ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no {model}")
    return mixture(name, model, f"{name}{config}", **{**given, **changes})
