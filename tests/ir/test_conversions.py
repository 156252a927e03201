"""Conversions between whole layouts, forward and backward, before any model runs.

The oracle knows nothing of steps: it reads a shard straight from the mixed-radix digits of each index.
"""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from autopar.ir.convert import Step, changes, convert
from autopar.ir.layout import RSTAR, Layout, P, Partial, Placement, R, Replicate, Shard
from autopar.ir.mesh import Mesh
from autopar.runtime.simulate import run_steps, shard, unshard

MESHES = [
    Mesh((("a", 2), ("b", 2))),
    Mesh((("a", 2), ("b", 2), ("c", 2))),
    Mesh((("a", 2), ("b", 3))),
    Mesh((("a", 2), ("b", 3), ("c", 2))),
]
SHAPE = (24, 36)


def by_digits(tensor: Tensor, layout: Layout, rank: int) -> Tensor:
    """The elements whose digit of every owned factor is the rank's coordinate there."""
    position = layout.mesh.coordinate(rank)
    for dim, extent in enumerate(tensor.shape):
        keep = list(range(extent))
        for axis, placement in zip(layout.mesh.names, layout.placements, strict=True):
            if isinstance(placement, Shard) and placement.dim == dim:
                k = layout.mesh.size(axis)
                rest = extent // (placement.outer * k)
                keep = [i for i in keep if (i // rest) % k == position[axis]]
        tensor = tensor.index_select(dim, torch.tensor(keep))
    return tensor


def random_layout(draw: random.Random, mesh: Mesh, others: list[Placement]) -> Layout:
    """Any layout of ``SHAPE`` over S with every stride and ``others``."""
    layout = Layout.replicated(mesh)
    for axis in draw.sample(mesh.names, len(mesh.names)):
        legal: list[Placement] = []
        for dim, extent in enumerate(SHAPE):
            for outer in (1, 2, 3, 4, 6, 9, 12, 18):
                candidate = layout.replace(axis, Shard(dim, outer))
                if extent % outer == 0 and candidate.problem(SHAPE) is None:
                    legal.append(Shard(dim, outer))
        kind = draw.random()
        choice = draw.choice(legal) if legal and kind < 0.6 else draw.choice(others)
        layout = layout.replace(axis, choice)
    return layout


def split(tensor: Tensor, layout: Layout, axes: list[str]) -> list[Tensor]:
    """Each rank's shard of random whole tensors that sum to ``tensor`` along ``axes``, equal on replicas."""
    mesh = layout.mesh
    positions = [tuple(position[axis] for axis in axes) for position in mesh.coordinates()]
    parts = {position: torch.randn_like(tensor) for position in dict.fromkeys(positions)}
    first = positions[0]
    parts[first] = tensor - sum((part for at, part in parts.items() if at != first), torch.zeros_like(tensor))
    return [by_digits(parts[position], layout, rank) for rank, position in enumerate(positions)]


def check(src: Layout, dst: Layout) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(SHAPE, dtype=torch.float64)
    steps = convert(src, dst, SHAPE, grad=True)

    told = changes(src, dst, SHAPE, grad=True) if src != dst else ()
    assert told == tuple((step.kind, step.backward, step.axis, step.before, step.after) for step in steps)

    partial = [a for a in src.mesh.names if isinstance(src[a], Partial)]
    start = [x.requires_grad_() for x in split(tensor, src, partial)]
    end = run_steps(start, steps)

    partial_after = [a for a in dst.mesh.names if isinstance(dst[a], Partial)]
    torch.testing.assert_close(unshard([x.detach() for x in end], dst), tensor)
    if not partial_after:
        for rank, value in enumerate(end):
            torch.testing.assert_close(value.detach(), by_digits(tensor, dst, rank), msg=f"rank {rank}")

    reference = torch.randn(SHAPE, dtype=torch.float64)
    starred = [a for a in dst.mesh.names if dst[a] == RSTAR]
    torch.autograd.backward(end, split(reference, dst, starred))
    for rank, value in enumerate(start):
        assert value.grad is not None
        torch.testing.assert_close(value.grad, by_digits(reference, src, rank), msg=f"gradient, rank {rank}")


def check_seeded(seed: int) -> None:
    draw = random.Random(seed)
    mesh = draw.choice(MESHES)
    src = random_layout(draw, mesh, [R, P])
    dst = random_layout(draw, mesh, [R, RSTAR, P])
    try:
        check(src, dst)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {src} → {dst} on {mesh}: {error}") from error


@settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_conversion_moves_values_and_gradients(seed: int) -> None:
    """Every shard equals its definition by index, and the source's gradient is whole where it should be."""
    check_seeded(seed)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 4))])
def test_conversion_on_many_seeds(part: int) -> None:
    """The same in bulk."""
    for seed in range(part * 500, part * 500 + 500):
        check_seeded(seed)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_shard_and_unshard_are_inverse(mesh: Mesh) -> None:
    """Each rank's part is that of the definition, and the parts make the whole."""
    tensor = torch.randn(SHAPE, dtype=torch.float64)
    for seed in range(100):
        layout = random_layout(random.Random(seed), mesh, [R])
        held = shard(tensor, layout)
        for rank, value in enumerate(held):
            assert torch.equal(value, by_digits(tensor, layout, rank))
        assert torch.equal(unshard(held, layout), tensor)


def test_conversion_to_the_same_layout_is_no_step() -> None:
    layout = Layout.of(MESHES[0], {"a": Shard(0), "b": P})
    assert convert(layout, layout, SHAPE, grad=True) == ()


def test_steps_chain() -> None:
    """Each step starts in the layout in which the last one ended."""
    draw = random.Random(5)
    for _ in range(200):
        mesh = draw.choice(MESHES)
        src, dst = random_layout(draw, mesh, [R, P]), random_layout(draw, mesh, [R, RSTAR, P])
        steps: tuple[Step, ...] = convert(src, dst, SHAPE, grad=True)
        layouts = [src, *(step.after for step in steps)]
        assert [step.before for step in steps] == layouts[:-1]
        assert layouts[-1] == dst
        assert all(isinstance(step.before[step.axis], (Shard, Replicate, Partial)) for step in steps)
