"""What a mesh's devices hold at least: below every plan on it, near to the leanest, and none is laid out in vain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers

from autopar.arguments import check
from autopar.compiling import ready
from autopar.errors import InfeasibleError
from autopar.finding import Prepared, find_plan
from autopar.ir.plan import Plan
from autopar.passes.least_bytes import LeastBytes
from autopar.passes.outer import Candidate
from autopar.passes.positions import positions
from autopar.passes.recipes import asked

CASES: list[tuple[dict[str, int], dict[str, Any]]] = [
    ({"pp": 2, "dp": 2}, {}),
    ({"pp": 2, "dp": 2}, {"mixed_precision": "bf16"}),
    ({"pp": 2, "dp": 2}, {"zero": 0, "num_microbatches": 2}),
    ({"pp": 2, "tp": 2}, {"mixed_precision": "bf16"}),
    ({"pp": 4}, {"schedule": "gpipe", "optimizer": "adafactor"}),
    ({"dp": 4}, {}),
    ({"dp": 4}, {"zero": 0, "mixed_precision": "bf16"}),
    ({"dp": 4}, {"zero": 1, "num_microbatches": 4}),
    ({"dp": 4}, {"zero": 2, "num_microbatches": 4, "mixed_precision": "bf16"}),
    ({"dp": 2, "tp": 2}, {"zero": 1, "num_microbatches": 2, "mixed_precision": "bf16"}),
    ({"dp": 2, "ep": 2}, {"optimizer": "sgd"}),
    ({"pp": 2, "ep": 2}, {"mixed_precision": "bf16"}),
]


def mixture() -> torch.nn.Module:
    """Whose activations are nothing beside its parameters."""
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, num_local_experts=8,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.MixtralForCausalLM(config)


def tokens() -> dict[str, torch.Tensor]:
    ids = torch.zeros(16, 4, dtype=torch.int64, device="meta")
    return {"input_ids": ids, "labels": ids}


def asked_of(mesh: Mapping[str, int] | None, **options: Any) -> tuple[Prepared, LeastBytes, list[Candidate]]:
    """The model, and what it has to choose from."""
    arguments = check(cluster="1x4xH100-SXM", mesh=mesh, **options)
    prepared = ready(mixture(), tokens(), arguments)
    marks = positions(prepared.model.graph, prepared.model.rules, prepared.model.settings.inputs)
    model, candidates = asked(prepared.model, arguments.cluster, arguments.limits(), marks)
    return prepared, LeastBytes(model, arguments.profile), candidates


def planned(prepared: Prepared, mesh: Mapping[str, int] | None, **options: Any) -> Plan:
    return find_plan(prepared, check(cluster="1x4xH100-SXM", mesh=mesh, **options))[0]


@pytest.mark.parametrize(("mesh", "options"), CASES, ids=str)
def test_every_plan_holds_as_much_and_some_plan_little_more(mesh: dict[str, int], options: dict[str, Any]) -> None:
    prepared, least_bytes, candidates = asked_of(mesh, **options)
    plan = planned(prepared, mesh, memory_budget=3 * min(map(least_bytes.of, candidates)), **options)
    least = next(least_bytes.of(each) for each in candidates if plan.num_microbatches in (each.count, *each.more))
    assert least <= max(plan.memory.peak_bytes)


def test_a_pipeline_that_cannot_fit_is_not_laid_out() -> None:
    """Nor some of a free search: what they compute with, and earlier gradients, are whole on each device."""
    mesh = {"pp": 2, "dp": 2}
    prepared, least_bytes, candidates = asked_of(mesh)
    budget = min(map(least_bytes.of, candidates)) - 1
    with pytest.raises(InfeasibleError) as refusal:
        planned(prepared, mesh, memory_budget=budget, time_limit=1)
    needed = int(str(refusal.value.details["needed_bytes"]))
    assert budget < needed <= max(planned(prepared, mesh).memory.peak_bytes)
    _, least_bytes, candidates = asked_of(None)
    assert 0 < sum(least_bytes.fit(each, budget) for each in candidates) < len(candidates)
