"""The mesh that a verification runs on."""

from __future__ import annotations

import math

from autopar.ir.errors import UsageError
from autopar.ir.mesh import Mesh
from autopar.ir.plan import Plan

MOST_MICROBATCHES = 2


def smaller_mesh(plan: Plan, processes: int) -> Mesh:
    """The plan's mesh with each axis at most 2; then the rightmost become 1 until ``processes`` suffice."""
    if processes < 1:
        raise UsageError(f"--nproc is {processes}; it must be 1 or more")
    sizes = [min(plan.mesh[axis], 2) for axis in plan.axes]
    for at in reversed(range(len(sizes))):
        if math.prod(sizes) > processes:
            sizes[at] = 1
    return Mesh(tuple(zip(plan.axes, sizes, strict=True)))


def microbatches(plan: Plan) -> int:
    return min(plan.num_microbatches, MOST_MICROBATCHES)


def smaller_shares(mesh: Mesh, count: int) -> tuple[int, ...]:
    """Unequal shares of ``count`` microbatches on average: the first rank of two runs one more, the last one less."""
    return (count + 1, *(count,) * (mesh.world_size - 2), count - 1)
