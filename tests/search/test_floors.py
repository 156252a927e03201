"""Cheap bounds of an outer choice are no more than its own, so that no better plan is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import autopar
from autopar.models import resolve
from autopar.passes import search
from autopar.passes.bounds import Bounds
from autopar.passes.found import UNLIMITED_BYTES, UNREACHABLE_NS
from autopar.passes.outer import Candidate, Rung
from autopar.passes.solve import solve

MODELS = ("gpt2", "llama3-8b", "bert-large", "t5-large", "vit-large")
CLUSTERS = ("2x4xH100-SXM", "2x4xV100-SXM2-32GB@32Gb/s")
CASES = [(model, cluster, 32) for model in MODELS for cluster in CLUSTERS] + [("llama3-8b", "8x8xH100-SXM", 512)]
QUICK = "bert-large", "2x4xV100-SXM2-32GB@32Gb/s", 32


def floors(monkeypatch: pytest.MonkeyPatch, name: str, cluster: str, batch: int) -> list[tuple[str, int, int]]:
    """Outer choice, cheap bound and own bound, of every one that has a cheap bound."""
    found = []

    def run(self: Any, candidates: list[Candidate]) -> None:
        for candidate in candidates:
            cheap: Candidate | None = candidate
            while cheap is not None and cheap.rung < Rung.FEWEST:
                cheap = self.bounds.raised(cheap, UNREACHABLE_NS)  # so that no cheap one is enough
            if cheap is None:
                continue  # it cannot be placed at all
            own = self.bounds.raised(replace(candidate, rung=Rung.ROUGH))
            if own is not None:
                least = own.bound_ns if cheap.bound_ns <= own.bound_ns else fastest_ns(self.bounds, candidate)
                found.append((f"{cheap.full} {cheap.schedule} × {cheap.count}", cheap.bound_ns, least))
        original(self, candidates)

    def fastest_ns(bounds: Bounds, candidate: Candidate) -> int:
        """By all means, since its own bound may be loose."""
        encoded = bounds.encode(candidate, None if candidate.shape is None else "1f1b", ample=True)
        assert encoded is not None
        return solve(encoded[0].problem, memory_bytes=UNLIMITED_BYTES, effort=2).objective_ns

    original = search._Search.run
    monkeypatch.setattr(search._Search, "run", run)
    length = None if name == "vit-large" else 128
    model = resolve(f"zoo:{name}", batch_size=batch, seq_len=length, layers=2)
    precision = None if "V100" in cluster else "bf16"
    # own bounds ignore memory, some cheap ones do not
    autopar.plan(
        model.model, model.example_inputs, cluster=cluster, mixed_precision=precision, memory_budget=UNLIMITED_BYTES
    )
    return found


@pytest.mark.parametrize(
    ("name", "cluster", "batch"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case != QUICK else []) for case in CASES],
)
def test_no_floor_is_above_its_bound(name: str, cluster: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = floors(monkeypatch, name, cluster, batch)
    assert len(found) > 1
    assert [case for case in found if not 0 < case[1] <= case[2]] == []
