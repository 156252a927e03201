"""Models of pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.families.family import BATCH, SEQ, VOCAB, Family, from_transformers, normal, tokens

CLASSES = 10


def _classes() -> Tensor:
    return torch.arange(BATCH) % CLASSES


def _batch(size: int) -> dict[str, Tensor]:
    return {"pixel_values": normal(BATCH, 3, size, size), "labels": _classes()}


def _classifier(name: str, model: str, config: str, *, size: int = 32, **changes: Any) -> Family:
    return Family(name=name, build=from_transformers(model, config, num_labels=CLASSES, **changes),
                  batch=lambda: _batch(size))  # fmt: skip


def _pairs() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "pixel_values": normal(BATCH, 3, 16, 16)}


def _segments() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 4, (BATCH, 32, 32), generator=generator)
    return {"pixel_values": normal(BATCH, 3, 32, 32), "labels": labels}


_TEXT = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48,
         "vocab_size": VOCAB, "max_position_embeddings": SEQ, "projection_dim": 16, "bos_token_id": 0,
         "eos_token_id": 2, "pad_token_id": 1}  # fmt: skip
_VIEW = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48,
         "image_size": 16, "patch_size": 8, "projection_dim": 16}  # fmt: skip

VISION: tuple[Family, ...] = (
    _classifier("vit", "ViTForImageClassification", "ViTConfig", num_hidden_layers=2, hidden_size=32,
                num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8),
    Family(name="clip", batch=lambda: {**_pairs(), "return_loss": True},
           build=from_transformers("CLIPModel", "CLIPConfig", text_config=_TEXT, vision_config=_VIEW,
                                   projection_dim=16)),
    _classifier("swin", "SwinForImageClassification", "SwinConfig", image_size=32, patch_size=4, embed_dim=16,
                depths=[2, 2], num_heads=[2, 4], window_size=4),
    _classifier("convnext", "ConvNextForImageClassification", "ConvNextConfig", depths=[1, 1, 1, 1],
                hidden_sizes=[16, 16, 32, 32], num_stages=4),
    _classifier("resnet", "ResNetForImageClassification", "ResNetConfig", embedding_size=16,
                hidden_sizes=[16, 32], depths=[2, 2], layer_type="bottleneck"),
    Family(name="segformer", batch=_segments, build=from_transformers(
        "SegformerForSemanticSegmentation", "SegformerConfig", num_labels=4, depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16)),
)  # fmt: skip
