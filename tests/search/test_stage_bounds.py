"""Bounds of pipelines: no plan is faster than its own, and few plans are much slower."""

from __future__ import annotations

from typing import Any

import pytest

from autopar.arguments import check
from autopar.compiling import ready
from autopar.passes.found import Found
from autopar.passes.search import search
from autopar.zoo import find

ROUNDED = 1e-8
GAP = 0.016

# Few layers, so that what stands beside them counts: heads, embeddings, what each stage computes for itself.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt2": ({"layers": 12, "batch_size": 512, "seq_len": 256}, {"mesh": {"pp": 8, "dp": -1}, "num_microbatches": 16}),
    "bert-large": (
        {"layers": 12, "batch_size": 512, "seq_len": 256}, {"mesh": {"pp": 4, "dp": -1}, "num_microbatches": 16},
    ),
    "vit-large": ({"layers": 4, "batch_size": 512}, {"mesh": {"pp": 4, "tp": 2, "dp": -1}, "num_microbatches": 32}),
    "t5-large": (
        {"layers": 12, "batch_size": 512, "seq_len": 512}, {"mesh": {"pp": 8, "dp": -1}, "num_microbatches": 16},
    ),
    "whisper-large": ({"layers": 8, "batch_size": 256}, {"mesh": {"pp": 8, "dp": -1}, "num_microbatches": 32}),
    "llama3-8b": (
        {"layers": 12, "batch_size": 256, "seq_len": 512},
        {"mesh": {"pp": 4, "dp": -1}, "num_microbatches": 16, "memory_budget": "16GB"},
    ),
}  # fmt: skip


def found(name: str, size: dict[str, Any], **options: Any) -> Found:
    arguments = check(**{"name": "model", "cluster": "2x8xH100-SXM", "mixed_precision": "bf16", **options})
    readied = ready(*find(name).build(**size), arguments)
    return search(readied.model, arguments.cluster, arguments.profile, arguments.limits())


def check_bounds(result: Found) -> None:
    """What is tried has the bound that it had before; the plan's own is cut off at its objective."""
    for one in result.tried:
        if one.objective_ns is not None:
            assert one.bound_ns <= one.objective_ns * (1 + ROUNDED), one


@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_is_hardly_slower_than_its_bound(name: str) -> None:
    size, options = CASES[name]
    result = found(name, size, **options)
    check_bounds(result)
    assert result.objective_ns <= result.bound_ns * (1 + GAP)


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("name", ["t5-large", "gpt2", pytest.param("mixtral-8x7b", marks=pytest.mark.slow)])
def test_no_bound_is_above_its_plan(name: str, schedule: str) -> None:
    size = {"layers": 8, "batch_size": 64, "seq_len": 256}
    check_bounds(found(name, size, mesh={"pp": 4, "dp": -1, "tp": 2}, num_microbatches=8, schedule=schedule))
