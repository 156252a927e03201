"""What one device says within the memory of all, with each number of microbatches."""

from __future__ import annotations

import functools

import pytest

from autopar.arguments import Arguments, check
from autopar.compiling import ready
from autopar.ir.mesh import Mesh
from autopar.models import resolve
from autopar.passes.bounds import Bounds
from autopar.passes.build import Model
from autopar.passes.positions import Positions, positions

COUNTS = (1, 2, 4, 8, 16, 64)
MESH = Mesh((("dp", 8),))


@functools.cache
def ground() -> tuple[Arguments, Model, Positions]:
    model = resolve("zoo:gpt2", batch_size=512, seq_len=128, layers=2)
    arguments = check(cluster="2x4xH100-SXM", name="gpt2")
    prepared = ready(model.model, model.example_inputs, arguments).model
    marks = positions(prepared.graph, prepared.rules, prepared.settings.inputs)
    return arguments, prepared, marks


def bounds_of(memory_bytes: int) -> Bounds:
    arguments, prepared, marks = ground()
    return Bounds(
        model=prepared, cluster=arguments.cluster, profile=arguments.profile, positions=marks,
        memory_bytes=memory_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("share", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("asked", [(1, 64), (64,), (4, 1, 64), (8, 2, 64)])
def test_bounds_taken_from_fewer_microbatches_are_no_higher(share: float, asked: tuple[int, ...]) -> None:
    """Than what is worked out for each number by itself, within a share of what is held without memory's limit."""
    memory_bytes = int(bounds_of(1 << 60).pooled.ample_bytes * share / 8)
    bounds = bounds_of(memory_bytes)
    found = {count: bounds.pooled.share_ns(MESH, None, count) for count in (*asked, *COUNTS)}
    assert list(found.values()) == [bounds.pooled.share_ns(MESH, None, count) for count in found]
    for count in COUNTS:
        alone = bounds_of(memory_bytes)
        alone.pooled.price = bounds.pooled.price
        assert 0 < found[count] <= alone.pooled.share_ns(MESH, None, count)


def test_memory_that_is_ample_is_not_asked_about_again() -> None:
    bounds = bounds_of(1 << 60)
    for count in (2, *reversed(COUNTS)):
        bounds.pooled.share_ns(MESH, None, count)
    assert {key[2] for key in bounds.pooled.ample} == set(COUNTS)
    assert bounds.problems == 3  # without the limit, and with two and one microbatch
