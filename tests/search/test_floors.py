"""A mesh's bound from its innermost axis alone is no more than its own, so that no better plan is left out."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from autopar.ir.mesh import Mesh
from autopar.models import resolve
from autopar.passes import search

MODELS = ("gpt2", "llama3-8b", "bert-large", "t5-large", "vit-large")
CLUSTERS = ("2x4xH100-SXM", "2x4xV100-SXM2-32GB@32Gb/s")
CASES = [(model, cluster, 32) for model in MODELS for cluster in CLUSTERS] + [("llama3-8b", "8x8xH100-SXM", 512)]


def floors(monkeypatch: pytest.MonkeyPatch, name: str, cluster: str, batch: int) -> list[tuple[str, int, int]]:
    """Mesh, floor and bound of every mesh that has a floor."""
    found = []
    original = search._Search.floored

    def floored(self: Any, mesh: Mesh, counts: tuple[int, ...]) -> Any:
        candidate = original(self, mesh, counts)
        tight = None if candidate is None else self.bounded(mesh, counts, mesh)
        if candidate is not None and tight is not None:
            found.append((str(mesh), candidate.bound_ns, tight.bound_ns))
        return candidate

    monkeypatch.setattr(search._Search, "floored", floored)
    length = None if name == "vit-large" else 128
    model = resolve(f"zoo:{name}", batch_size=batch, seq_len=length, layers=2)
    precision = None if "V100" in cluster else "bf16"
    autopar.plan(model.model, model.example_inputs, cluster=cluster, mixed_precision=precision)
    return found


@pytest.mark.parametrize(
    ("name", "cluster", "batch"),
    [pytest.param(*case, marks=[] if case[0] == "gpt2" else pytest.mark.slow) for case in CASES],
)
def test_no_floor_is_above_its_bound(name: str, cluster: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = floors(monkeypatch, name, cluster, batch)
    assert len(found) > 1
    assert all(0 < floor <= bound for _, floor, bound in found), found
