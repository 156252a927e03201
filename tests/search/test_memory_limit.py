"""The peak of a plan stays within the memory that it may use, also where the root's gradients are what is largest."""

from __future__ import annotations

import pytest
import torch
import transformers

import autopar
from autopar.ir.errors import InfeasibleError


def model() -> torch.nn.Module:
    """Little but vocabulary: the buffer of its gradients outweighs all activations."""
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=False,
    )  # type: ignore[call-arg]  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def test_the_peak_is_within_every_budget_down_to_the_least() -> None:
    tokens = torch.zeros(16, 32, dtype=torch.int64, device="meta")
    options = {"mesh": {"dp": 4}, "num_microbatches": 2, "mixed_precision": "bf16", "cluster": "2x2xH100-SXM@10Gb/s"}
    made, refused = [], 0
    for budget in range(340, 100, -24):
        try:
            plan = autopar.plan(
                model(), {"input_ids": tokens, "labels": tokens}, memory_budget=f"{budget}MB", **options
            )
        except InfeasibleError as error:
            refused += 1
            assert error.details["fits_bytes"] > budget * 10**6
            continue
        assert not refused, "what fits less memory fits more"
        assert max(plan.memory.peak_bytes) <= budget * 10**6
        made.append(plan.objective_s)
    assert refused
    assert made[-1] > made[0]


@pytest.mark.parametrize("zero", [0, 3])
def test_what_is_said_to_fit_does(zero: int) -> None:
    tokens = torch.zeros(16, 32, dtype=torch.int64, device="meta")
    batch = {"input_ids": tokens, "labels": tokens}
    with pytest.raises(InfeasibleError) as refusal:
        autopar.plan(model(), batch, mesh={"dp": 4}, zero=zero, cluster="1x4xH100-SXM", memory_budget="20MB")
    fits = refusal.value.details["fits_bytes"]
    plan = autopar.plan(model(), batch, mesh={"dp": 4}, zero=zero, cluster="1x4xH100-SXM", memory_budget=f"{fits}B")
    assert max(plan.memory.peak_bytes) <= fits
