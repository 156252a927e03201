"""Where nothing fits: what is needed at least, and the largest tensors of the closest plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import autopar
from autopar.arguments import check
from autopar.compiling import ready
from autopar.errors import InfeasibleError
from autopar.ir.plan import Plan
from autopar.passes.bounds import Bounds
from autopar.passes.outer import Candidate
from autopar.passes.search import search
from autopar.passes.shortfall import told_apart
from autopar.zoo import find

LAYERS, DEVICES = 4, 4


def model() -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def planned(budget: int, **options: Any) -> Plan:
    tokens = torch.zeros(8, 64, dtype=torch.int64, device="meta")
    batch = {"input_ids": tokens, "labels": tokens}
    return autopar.plan(model(), batch, cluster=f"1x{DEVICES}xH100-SXM", memory_budget=budget, **options)


@pytest.mark.parametrize("options", [{}, {"mesh": {"dp": 4}, "zero": 0, "num_microbatches": 2}], ids=["free", "copies"])
def test_a_refusal_names_needs_and_largest_tensors(options: dict[str, Any]) -> None:
    held = 16 * sum(p.numel() for p in model().parameters()) // DEVICES  # float32 AdamW, cut over all
    budget = held - 1 if not options else 2 * held
    with pytest.raises(InfeasibleError) as refusal:
        planned(budget, **options)
    details: dict[str, Any] = dict(refusal.value.details)
    assert budget < details["needed_bytes"] <= details["fits_bytes"]
    largest = details["largest"]
    assert any("model.layers.*.mlp" in what and f"×{LAYERS}" in what for what in largest)
    assert any("lm_head" in what for what in largest)
    assert all(what in str(refusal.value) for what in largest)


def test_a_search_says_how_far_it_is() -> None:
    told: list[str] = []
    plan = planned(10**9, progress=told.append)
    assert "no plan yet" in told[0] and all("candidates left" in line for line in told)
    assert f"best {plan.objective_s:.4g} s" in told[-1]


def test_no_plan_holds_less_than_what_every_plan_is_said_to_need() -> None:
    with pytest.raises(InfeasibleError) as refusal:
        planned(1000)
    needed = int(str(refusal.value.details["needed_bytes"]))
    assert max(planned(10**9, mesh={"dp": 4}, zero=3, recompute="full").memory.peak_bytes) >= needed


@pytest.mark.parametrize(
    ("mesh", "budget"),
    [pytest.param({"pp": 4}, 4_500_000, marks=pytest.mark.slow), ({"pp": 2, "dp": 2}, 7_000_000)], ids=str,
)  # fmt: skip
def test_a_pipeline_is_as_near_as_its_fullest_place(mesh: dict[str, int], budget: int) -> None:
    """The budget holds the mean of its places, and not each of them."""
    with pytest.raises(InfeasibleError) as refusal:
        planned(budget, mesh=mesh)
    fits = int(str(refusal.value.details["fits_bytes"]))
    assert budget < fits and f"at {fits / 1e9:.4g} GB" in str(refusal.value)


@pytest.mark.slow
def test_what_is_said_of_a_pipeline_fits() -> None:
    with pytest.raises(InfeasibleError) as refusal:
        planned(4_500_000, mesh={"pp": 4})
    fits = int(str(refusal.value.details["fits_bytes"]))
    assert max(planned(fits, mesh={"pp": 4}).memory.peak_bytes) <= fits


class Spare(torch.nn.Module):
    """A small model beside a parameter, many times as large, that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(8, 8)
        self.spare = torch.nn.Parameter(torch.zeros(1000, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.used(x)
        return found.sum()


def test_what_is_never_trained_needs_no_gradients() -> None:
    plan = autopar.plan(Spare(), (torch.zeros(4, 8),), cluster="1x1xH100-SXM", memory_budget="10MB")
    assert plan.proven_optimal


def test_what_is_needed_never_reads_like_what_there_is() -> None:
    assert told_apart(32_320_000_001, 32_320_000_000) == "32.320000001 GB on each device, 32.32 GB may be used"
    assert told_apart(33_430_000_000, 32_380_000_000) == "33.43 GB on each device, 32.38 GB may be used"


def test_what_experts_rule_out_is_not_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are hundreds of meshes laid out of which each is known to need too much."""
    laid_out: list[Candidate] = []

    def encode(self: Bounds, one: Candidate, *args: Any, **options: Any) -> object:
        if not options.get("only_heavy"):
            laid_out.append(one)
        return original(self, one, *args, **options)

    original = Bounds.encode
    monkeypatch.setattr(Bounds, "encode", encode)
    arguments = check(
        cluster="2x8xV100-SXM2-32GB", name="model", mixed_precision="fp16", optimizer="adafactor", memory_budget="50GB"
    )
    model = ready(*find("m6-moe-1t").build(layers=2, batch_size=64, seq_len=512), arguments).model
    with pytest.raises(InfeasibleError, match="needs more than the 50 GB on each device that may be used") as refusal:
        search(model, arguments.cluster, arguments.profile, arguments.limits())
    details: dict[str, Any] = dict(refusal.value.details)
    assert details["needed_bytes"] == 50 * 10**9 + 1
    assert 50 * 10**9 < details["fits_bytes"] < 55 * 10**9  # experts over all devices
    assert not any(one.shape for one in laid_out) and len(laid_out) < 20
