"""What problems of one mesh share in any number of microbatches is what each would work out by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autopar.ir.mesh import Mesh
from autopar.passes.build import build
from autopar.passes.ground import Ground
from autopar.passes.outer import Candidate
from autopar.passes.problem import Problem
from tests.search.staged import CASES, pipelines

BESIDE = ((), (("tp", 4),), (("ep", 2),))  # dp


@pytest.mark.parametrize("ample", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_problems_that_share_are_those_that_stand_alone(name: str, ample: bool) -> None:
    """With a pipeline and without, where some nodes have several devices and ZeRO may stay inside them."""
    bounds, known = pipelines(name, "1f1b")
    world = bounds.cluster.world_size
    meshes = [Mesh((("dp", world // math.prod(size for _, size in axes)), *axes)) for axes in BESIDE]
    plain = [
        Candidate(mesh=mesh, full=mesh, count=count, fewest=count) for mesh in meshes for count in (1, 2, 4)
    ]  # fmt: skip
    shared = 0
    for one in (*known, *plain):
        made = bounds.encode(one, one.schedule, ample=ample)
        assert made is not None, bounds.refused
        model = bounds.model_of(one)
        ground = Ground(model, replace(bounds.positions, inner=False), made[1])
        before = len(ground.timeless.upkeep)
        alone = build(model, ground.found, ground.pricing, one.count, ample=ample, ground=ground)
        assert numbers(made[0].problem) == numbers(alone.problem)
        shared += len(ground.timeless.upkeep) - before
    known_once = sum(len(each.upkeep) for each in bounds.grounds.timeless.values())
    assert known_once == shared if ample else known_once < shared  # ample: by how many there are


def numbers(problem: Problem) -> list[tuple[object, ...]]:
    segments = (problem.root, *(chain.segment for chain in problem.chains))
    return [(each.domains, each.numbers.tobytes(), *map(further, each.tables)) for each in segments]


def further(table: object) -> bytes:
    found = getattr(table, "further_ns", None)
    return np.asarray(found).tobytes()
