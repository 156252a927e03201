"""Bound <= best of everything jointly <= objective: random small models, clusters, prices and memory limits.

The best of meshes, microbatches, placements, storages and recomputation is found by trying all of it
(``exhaustive.py``); of pipelines the best that is found where ``pp`` is pinned counts.
"""

from __future__ import annotations

import contextlib
import math
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.arguments import Arguments, check
from autopar.compiling import Readied, ready
from autopar.errors import AutoparError, InfeasibleError
from autopar.passes.bounds import Bounds
from autopar.passes.extents import layers
from autopar.passes.found import Limits
from autopar.passes.outer import outer_candidates
from autopar.passes.positions import positions
from autopar.passes.search import search
from tests.search.exhaustive import outcomes

CLUSTERS = ("1x2", "1x3", "1x4", "2x2", "2x3", "2x4", "2x8")
TIMES = (0.01, 0.1, 1.0)
CLOSED = 1e-6
ROOT = 1.5  # memory of root parameters at most, over the solver's sum


class Blocks(nn.Module):
    """1 to 3 equal blocks of one or two products."""

    def __init__(self, blocks: int, inner: tuple[int, ...]) -> None:
        super().__init__()
        sizes = list(zip((8, *inner), (*inner, 8), strict=True))
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(m, n, bias=False) for m, n in sizes) for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            for layer in block:  # type: ignore[attr-defined]
                x = F.relu(layer(x))
        return x.square().sum()


def profile(rng: random.Random, folder: Path) -> Path:
    """Rates of a made-up device and its links, over several powers of ten."""
    path = folder / "profile.toml"
    path.write_text(
        f"[device.Odd]\nfp32_tflops = {10 ** rng.uniform(-5, -3)}\nmemory_gb = 1\n"
        f"memory_tb_s = {10 ** rng.uniform(-5, -3)}\nintra = 'near'\ninter = 'far'\nnics_per_node = 1\n"
        f"[link.near]\nbandwidth_gb_s = {10 ** rng.uniform(-2, 1)}\nlatency_us = {10 ** rng.uniform(-2, 0.5)}\n"
        f"[link.far]\nbandwidth_gb_s = {10 ** rng.uniform(-2.5, 0.5)}\nlatency_us = {10 ** rng.uniform(-2, 0.5)}\n"
    )
    return path


def instance(seed: int, folder: Path) -> tuple[Readied, Arguments]:
    rng = random.Random(seed)
    inner = rng.choice([(), (), (12,), (16,)])
    model = Blocks(rng.randint(1, 3), inner)
    arguments = check(cluster=f"{rng.choice(CLUSTERS)}xOdd", profile=str(profile(rng, folder)))
    return ready(model, (torch.zeros(24, 8),), arguments), arguments


def everything(readied: Readied, arguments: Arguments) -> list[tuple[int, int]]:
    """(time, bytes) of all plans without a pipeline."""
    model = readied.model
    marks = positions(model.graph, model.rules, model.settings.inputs)
    bounds = Bounds(model=model, cluster=arguments.cluster, profile=arguments.profile, positions=marks, memory_bytes=1)
    found: list[tuple[int, int]] = []
    world = arguments.cluster.world_size
    for mesh in outer_candidates(Limits(memory_bytes=1), world, 24, None, 0, cluster=arguments.cluster):
        for count in (mesh.count, *mesh.more):
            again = type(mesh)(mesh=mesh.mesh, full=mesh.full, count=count, fewest=mesh.fewest)
            encoded = bounds.encode(again, None)
            found += outcomes(encoded[0].problem) if encoded is not None else []
    return found


def piped(readied: Readied, arguments: Arguments, memory: int) -> list[int]:
    """Times of the best pipelines that are cut between blocks."""
    found = []
    for places in range(2, layers(readied.model) + 1):
        for axis in ("dp", "tp"):
            pinned = Limits(memory_bytes=memory, mesh={"pp": places, axis: -1})
            with contextlib.suppress(AutoparError):
                found.append(search(readied.model, arguments.cluster, arguments.profile, pinned).objective_ns)
    return found


def check_instance(seed: int, folder: Path) -> None:
    readied, arguments = instance(seed, folder)
    every = everything(readied, arguments)
    rng = random.Random(-seed - 1)
    least, most = min(m for _, m in every), max(m for _, m in every)
    memory = rng.choice([most, int(least * (most / least) ** rng.random()), least + (most - least) // 10])
    best = min([t for t, m in every if m <= memory] + piped(readied, arguments, memory))
    for limit in (60.0, *TIMES):
        limits = Limits(memory_bytes=memory, time_limit_s=limit)
        try:
            found = search(readied.model, arguments.cluster, arguments.profile, limits)
        except InfeasibleError:
            assert memory < least * ROOT  # what is sent of the root's gradients is not in the sum
            return
        if found.pipeline is not None:
            best = min(best, found.objective_ns)
        told = f"seed {seed}, {memory} bytes, {limit} s: {found.bound_ns}, {best}, {found.objective_ns}"
        assert 0 < found.bound_ns <= best <= found.objective_ns, told
        if found.objective_ns - found.bound_ns <= CLOSED * found.objective_ns:
            assert math.isclose(found.objective_ns, best, rel_tol=2 * CLOSED), told


@pytest.mark.parametrize("first", [0])
def test_the_bound_holds_and_what_is_proven_is_best(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 6):
        check_instance(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1300, 20))
def test_the_bound_holds_for_300_instances(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        check_instance(seed, tmp_path)
