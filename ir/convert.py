"""Layout changes as steps: what one device does, forward and backward, on one axis at a time.

A value is produced in a layout of S, R and P placements and needed in one of S, R, R* and P
(R*: every consumer returns a part of the gradient). On one axis:

    have → need    forward          backward
    S → R*         all_gather       reduce_scatter
    S → R          all_gather       slice
    P → S          reduce_scatter   all_gather
    P → R          all_reduce       nothing
    P → R*         all_reduce       all_reduce
    R → R*         nothing          all_reduce
    R → S          slice            all_gather
    R → P          mask             nothing            (kept on the axis's first device, zeros elsewhere)
    S → S'         all_to_all       all_to_all         (through R where the two factors overlap)
    same           nothing          nothing

A step is written in *local* terms: ``dim`` and ``outer`` say that the local dim is viewed as
``outer · k · rest`` (slice, scatter) or receives the gathered k at that place. Where k does not divide the dim
(``Layout.padded``) ``extent`` is the dim's: zeros are added behind it before it is cut, and cut off after gathering.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autopar.ir.errors import IRError
from autopar.ir.layout import RSTAR, Layout, Partial, R, Replicate, Shard
from autopar.ir.mesh import Mesh

# Kinds that move data between devices in the forward direction, by (kind, backward).
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One axis's layout change. ``before`` and ``after`` are whole layouts.

    kind: all_gather | reduce_scatter | all_reduce | all_to_all | slice | mask | identity
    backward: the same kinds, or ``none`` (nothing to do, or no gradient wanted)
    (dim, outer): local position of the axis's factor in the sharded side; for all_to_all of the
    *source* in the result, and (dim_to, outer_to) of the *target* in the operand.
    """

    kind: str
    backward: str
    axis: str
    before: Layout
    after: Layout
    dim: int = 0
    outer: int = 1
    dim_to: int = 0
    outer_to: int = 1
    reduce: str = "sum"
    extent: int = 0


def convert(src: Layout, dst: Layout, shape: tuple[int, ...], *, grad: bool) -> tuple[Step, ...]:
    """Steps that bring a value of global ``shape`` from ``src`` to ``dst``.

    Requires: both layouts fit ``shape``; ``src`` has no R*. ``grad``: the value has a gradient.
    Ensures: after the last step each device holds its part of ``dst``. Steps that shrink the local
    tensor come first, gathers last. Raises IRError where no rule leads from one to the other.
    """
    steps: list[Step] = []
    now = src
    pending = [axis for axis in src.mesh.names if src[axis] != dst[axis]]
    if len(pending) == 1 and dst.problem(shape) is None:  # as most do
        return one_axis(src, pending[0], dst[pending[0]], shape, grad=grad)
    while pending:
        ready = [
            (order, axis) for axis in pending if (order := _readiness(now, dst, axis, shape)) is not None
        ]
        if ready:
            axis = min(ready, key=lambda item: item[0])[1]
            target = dst[axis]
        else:  # axes that wait for each other's factors: one of them lets go
            axis = next(a for a in pending if isinstance(now[a], Shard))
            target = R
        step = one_axis(now, axis, target, shape, grad=grad)
        steps.extend(step)
        now = step[-1].after
        if now[axis] == dst[axis]:
            pending.remove(axis)
    return tuple(steps)


def _readiness(now: Layout, dst: Layout, axis: str, shape: tuple[int, ...]) -> int | None:
    """Smaller goes first; None if the axis's place in ``dst`` is still taken or would not fit."""
    if now.replace(axis, dst[axis]).problem(shape) is not None:
        return None
    match now[axis], dst[axis]:
        case ((Partial() | Replicate()), Shard()):
            return 0
        case Shard(), Shard():
            return 1
        case Partial(), Replicate():
            return 2
        case Replicate(), _:
            return 3
        case _:
            return 4


def one_axis(
    now: Layout, axis: str, target: object, shape: tuple[int, ...], *, grad: bool
) -> tuple[Step, ...]:
    """The step (two where the table needs two) that brings one axis to ``target``."""
    have = now[axis]

    def extent(layout: Layout, dim: int) -> int:
        return shape[dim] if layout.padded(dim, shape[dim]) else 0

    def step(kind: str, backward: str, to: Layout, **at: int | str) -> Step:
        return Step(
            kind=kind,
            backward=backward if grad else "none",
            axis=axis,
            before=now,
            after=to,
            **at,  # type: ignore[arg-type]
        )

    match have, target:
        case Shard(dim, outer), Replicate(star):
            to = now.replace(axis, RSTAR if star else R)
            back = "reduce_scatter" if star else "slice"
            at = {"dim": dim, "outer": now.local_outer(dim, outer), "extent": extent(now, dim)}
            return (step("all_gather", back, to, **at),)
        case Partial("sum"), Shard(dim, outer):
            to = now.replace(axis, Shard(dim, outer))
            at = {"dim": dim, "outer": now.local_outer(dim, outer), "extent": extent(to, dim)}
            return (step("reduce_scatter", "all_gather", to, **at),)
        case Partial(op), Replicate(star):
            to = now.replace(axis, RSTAR if star else R)
            return (step("all_reduce", "all_reduce" if star else "none", to, reduce=op),)
        case Replicate(False), Replicate(True):
            return (step("identity", "all_reduce", now.replace(axis, RSTAR)),)
        case Replicate(False), Shard(dim, outer):
            to = now.replace(axis, Shard(dim, outer))
            at = {"dim": dim, "outer": now.local_outer(dim, outer), "extent": extent(to, dim)}
            return (step("slice", "all_gather", to, **at),)
        case Replicate(False), Partial("sum"):
            return (step("mask", "none", now.replace(axis, Partial())),)
        case Shard(dim, outer), Shard(dim_to, outer_to) if _disjoint(now, axis, dim_to, outer_to, shape):
            to = now.replace(axis, Shard(dim_to, outer_to))
            return (
                step(
                    "all_to_all", "all_to_all", to,
                    dim=dim, outer=to.local_outer(dim, outer),
                    dim_to=dim_to, outer_to=now.local_outer(dim_to, outer_to),
                ),
            )  # fmt: skip
        case Shard(), (Shard() | Partial("sum")):
            first = one_axis(now, axis, R, shape, grad=grad)
            return (*first, *one_axis(first[-1].after, axis, target, shape, grad=grad))
    raise IRError(f"no conversion on axis {axis} from {have} to {target} for shape {list(shape)}")


def _disjoint(now: Layout, axis: str, dim: int, outer: int, shape: tuple[int, ...]) -> bool:
    """Whether the factor that ``axis`` is to own is a factor of what it leaves local.

    Two factors of one dim that overlap (8 = k:4 · 2 and 2 · k:4) cannot be exchanged: the pieces that a
    device would send are not contained in what it holds. Padded parts are not exchanged either.
    """
    after = now.replace(axis, Shard(dim, outer))
    if any(layout.padded(at, shape[at]) for layout in (now, after) for at in range(len(shape))):
        return False
    both = Mesh((*now.mesh.axes, ("", now.mesh.size(axis))))
    return Layout(both, (*now.placements, Shard(dim, outer))).problem(shape) is None


def local_numel(layout: Layout, shape: tuple[int, ...]) -> int:
    """Elements that one device holds."""
    return math.prod(layout.local_shape(shape))
