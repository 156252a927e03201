"""What is proven where everything is free holds for every plan with something pinned, also where memory binds."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import autopar
from autopar.errors import AutoparError, InfeasibleError
from autopar.models import resolve

AXES = ("pp", "dp", "cp", "tp")
# A plan that needs an axis bound to nothing, or a pipeline, must be faster by this factor to be chosen.
PAYS = 0.99


def planned(name: str, layers: int, cluster: str, **options: Any) -> autopar.Plan:
    model = resolve(f"zoo:{name}", batch_size=32, seq_len=128, layers=layers)
    precision = None if "V100" in cluster else "bf16"
    return autopar.plan(
        model.model, model.example_inputs, cluster=cluster, mixed_precision=precision, **options
    )


def meshes(world: int) -> list[dict[str, int]]:
    """Every mesh of at most three axes."""
    sizes = [n for n in range(1, world + 1) if world % n == 0]
    found = []
    for chosen in itertools.product(sizes, repeat=len(AXES)):
        mesh = {axis: size for axis, size in zip(AXES, chosen, strict=True) if size > 1}
        if math.prod(chosen) == world and len(mesh) <= 3:
            found.append(mesh)
    return found


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("name", "layers", "cluster", "share"),
    [
        ("gpt2", 2, "1x2xH100-SXM", 0.5),
        pytest.param("gpt2", 2, "1x4xH100-SXM", 0.5, marks=pytest.mark.slow),
        pytest.param("gpt2", 4, "2x4xV100-SXM2-32GB@32Gb/s", 1.0, marks=pytest.mark.slow),
        pytest.param("gpt2", 4, "2x4xV100-SXM2-32GB@32Gb/s", 0.4, marks=pytest.mark.slow),
        pytest.param("llama3-8b", 4, "2x4xH100-SXM", 2.0, marks=pytest.mark.slow),
        pytest.param("llama3-8b", 4, "2x4xH100-SXM", 1.5, marks=pytest.mark.slow),
        pytest.param("t5-large", 4, "2x4xH100-SXM", 0.8, marks=pytest.mark.slow),
    ],
)
def test_no_pinned_mesh_is_below_the_bound(name: str, layers: int, cluster: str, share: float) -> None:
    """``share``: of the memory that the fastest plan takes."""
    ample = planned(name, layers, cluster)
    budget = round(max(ample.memory.peak_bytes) * share)
    try:
        free = planned(name, layers, cluster, memory_budget=budget)
    except InfeasibleError:
        pytest.fail(f"nothing fits in {share} of what the fastest plan takes")
    nodes, gpus = (int(n) for n in cluster.split("x")[:2])
    compared = 0
    for mesh in meshes(nodes * gpus):
        try:
            pinned = planned(name, layers, cluster, memory_budget=budget, mesh=mesh)
        except AutoparError:
            continue
        compared += 1
        assert free.lower_bound_s <= pinned.objective_s * (1 + 1e-9), mesh
        if len(mesh) <= 2 and "pp" not in mesh and free.gap <= 1e-6:
            assert free.objective_s <= pinned.objective_s / PAYS, mesh
    assert compared > 3
