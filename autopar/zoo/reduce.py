"""The same model, smaller: a configuration of less depth and width that divides by what the whole one divides by.

What a plan splits must stay splittable: heads keep their groups, and every other size keeps its power of two up
to 64 (an odd vocabulary stays odd), the number of experts up to 16.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from autopar.ir.errors import UsageError
from autopar.zoo.architecture import Architecture
from autopar.zoo.kinds import check_sizes

DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
         "num_key_value_heads", "num_kv_heads")  # fmt: skip
HEAD_WIDTHS = ("head_dim", "d_kv")
WIDTHS = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim")
INNER_WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "d_ff", "ffn_dim",
                "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_sizes", "embedding_size")  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")  # experts of each token; else 1
COUNTS = ("vocab_size", "num_labels")
WINDOWS = ("sliding_window", "local_attention", "attention_chunk_size")
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions")

LAYERS, LEAST_HEADS, HEAD_WIDTH, LEAST_WIDTH, LEAST_COUNT, LENGTH = 4, 4, 8, 16, 64, 32
_POWER, _MOST_EXPERTS, _MOST_PROTOTYPES = 64, 16, 4


def set_layers(config: Any, name: str, layers: int) -> None:
    """Change the depth, and lists that hold one item a layer with it. Raises UsageError if it has no depth."""
    check_sizes(name, {"layers": layers}, longest=None)
    # some keys are another name of the same number (attribute_map): those are set once, by their own name
    found = [key for key in DEPTHS if key not in config.attribute_map and isinstance(getattr(config, key, None), int)]
    if not found:
        raise UsageError(f"{name}: a {config.model_type} configuration has no number of layers to change")
    before = getattr(config, found[0])
    for key, value in list(vars(config).items()):
        if key.endswith("layer_types") and isinstance(value, list) and len(value) == before:
            setattr(config, key, list(itertools.islice(itertools.cycle(value), layers)))
    for key in found:
        setattr(config, key, layers)


def like(size: int, least: int) -> int:
    """The smallest number from ``least`` up that divides by the same power of two, up to 64, as ``size``."""
    if size <= least:
        return size
    power = math.gcd(size, _POWER)
    return next(n for n in itertools.count(max(least, power)) if math.gcd(n, _POWER) == power)


def reduced(architecture: Architecture, *, all_of: int | None = None, length: int = LENGTH) -> Architecture:
    """The same class with a configuration a few layers deep and some dozens of numbers wide; changes it in place.

    A table of ``all_of`` positions gets ``length``, any other more than that; windows narrower than so many stay
    narrower.
    """
    config = architecture.config
    if any(isinstance(getattr(config, key, None), int) for key in DEPTHS):
        kinds = getattr(config, "layer_types", None) or [""]
        period = next(n for n in range(1, len(kinds) + 1) if kinds[n:] == kinds[: len(kinds) - n])
        depth = min(getattr(config, key) for key in DEPTHS if isinstance(getattr(config, key, None), int))
        set_layers(config, config.model_type, min(depth, max(LAYERS, 3 * period)))
    own = [key for key in vars(config) if key not in config.attribute_map]
    heads = [getattr(config, key) for key in HEADS if key in own and getattr(config, key)]
    fewer = 1
    if heads:
        common = math.gcd(*heads)
        fewer = max(n for n in range(1, common + 1) if common % n == 0 and common // n >= min(common, LEAST_HEADS))
    for key in HEADS:
        if key in own and getattr(config, key):
            setattr(config, key, getattr(config, key) // fewer)
    narrower = _narrow(config, own, heads[0] if heads else 1, fewer)
    for key in INNER_WIDTHS:
        value = getattr(config, key, None) if key in own else None
        if isinstance(value, int):
            setattr(config, key, like(value, max(LEAST_WIDTH, value // narrower)))
        elif isinstance(value, list):
            least = min(value)
            setattr(config, key, [LEAST_WIDTH * (each // least) for each in value])
    if "prototypes" in own:
        config.prototypes = math.gcd(config.prototypes, _MOST_PROTOTYPES)
    chosen = max((getattr(config, key) for key in CHOSEN if isinstance(getattr(config, key, None), int)), default=1)
    for key in EXPERTS:
        if key in own and isinstance(getattr(config, key), int):
            fewest = math.gcd(getattr(config, key), _MOST_EXPERTS)
            setattr(config, key, fewest if fewest >= chosen else getattr(config, key))
    for key in (*COUNTS, *POSITIONS):
        value = getattr(config, key, None)
        if isinstance(value, int) and key not in config.attribute_map:
            every = key in POSITIONS and value == all_of
            setattr(config, key, length if every else like(value, LEAST_COUNT if key in COUNTS else 2 * length))
    for key in WINDOWS:
        value = getattr(config, key, None)
        if isinstance(value, int) and all_of is not None and value < all_of:
            setattr(config, key, min(value, length // 4))
    if architecture.kind == "image":
        config.image_size = 4 * getattr(config, "patch_size", 16)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, key, None), int) and getattr(config, key) >= config.vocab_size:
            setattr(config, key, 0)
    return architecture


def _narrow(config: Any, own: list[str], heads: int, fewer: int) -> int:
    """Reduce the widths that hold heads; by how much the model became narrower."""
    widths = [key for key in WIDTHS if key in own and isinstance(getattr(config, key), int)]
    if not widths:
        return 1
    before = getattr(config, widths[0])
    each = max(1, before // heads // HEAD_WIDTH)
    for key in () if "qk_rope_head_dim" in own else HEAD_WIDTHS:  # there heads have parts, which are kept
        if key in own and isinstance(getattr(config, key), int):
            setattr(config, key, max(HEAD_WIDTH, getattr(config, key) // each))
    for key in widths:
        setattr(config, key, max(LEAST_WIDTH, getattr(config, key) // (fewer * each)))
    return int(before // getattr(config, widths[0]))
