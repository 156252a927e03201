"""The peak of a plan stays within the memory that it may use, also where the root's gradients are what is largest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import autopar
from autopar.ir.errors import InfeasibleError
from autopar.ir.plan import Plan


def planned(**options: Any) -> Plan:
    """Of a model that is little but vocabulary: the buffer of its gradients outweighs all activations."""
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        tokens = torch.zeros(16, 32, dtype=torch.int64)
    return autopar.plan(model, {"input_ids": tokens, "labels": tokens}, mesh={"dp": 4}, **options)


def test_the_peak_is_within_every_budget_down_to_the_least() -> None:
    found: list[tuple[int, Plan | InfeasibleError]] = []
    for megabytes in range(340, 100, -60):
        try:
            plan = planned(
                memory_budget=f"{megabytes}MB", num_microbatches=2, mixed_precision="bf16",
                cluster="2x2xH100-SXM@10Gb/s",
            )  # fmt: skip
            found.append((megabytes, plan))
        except InfeasibleError as error:
            found.append((megabytes, error))
    plans = [(megabytes, each) for megabytes, each in found if isinstance(each, Plan)]
    refusals = [(megabytes, each) for megabytes, each in found if isinstance(each, InfeasibleError)]
    assert plans and refusals and found == plans + refusals  # what fits less memory fits more
    assert all(max(plan.memory.peak_bytes) <= megabytes * 10**6 for megabytes, plan in plans)
    assert all(int(str(error.details["fits_bytes"])) > megabytes * 10**6 for megabytes, error in refusals)
    assert plans[-1][1].objective_s > plans[0][1].objective_s


@pytest.mark.parametrize("zero", [0, 3])
def test_what_is_said_to_fit_does(zero: int) -> None:
    with pytest.raises(InfeasibleError) as refusal:
        planned(zero=zero, cluster="1x4xH100-SXM", memory_budget="20MB")
    fits = int(str(refusal.value.details["fits_bytes"]))
    plan = planned(zero=zero, cluster="1x4xH100-SXM", memory_budget=f"{fits}B")
    assert max(plan.memory.peak_bytes) <= fits
