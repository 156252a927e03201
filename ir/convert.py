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

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from autopar.ir.errors import IRError
from autopar.ir.layout import Layout, Partial, Placement, R, Replicate, Shard

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


class Change(NamedTuple):
    """What a step does, without how: all that its price depends on."""

    kind: str
    backward: str
    axis: str
    before: Layout
    after: Layout


def changes(src: Layout, dst: Layout, shape: tuple[int, ...], *, grad: bool) -> tuple[Change, ...]:
    """What ``convert`` does, in a fraction of its time where that is one step."""
    if (axis := only_axis(src, dst, shape)) is not None:
        kinds = change(src, axis, dst[axis], shape, grad=grad)
        if kinds is not None:
            return (Change(*kinds, axis, src, dst),)
    steps = convert(src, dst, shape, grad=grad)
    return tuple(Change(step.kind, step.backward, step.axis, step.before, step.after) for step in steps)


def convert(src: Layout, dst: Layout, shape: tuple[int, ...], *, grad: bool) -> tuple[Step, ...]:
    """Steps that bring a value of global ``shape`` from ``src`` to ``dst``.

    Requires: both layouts fit ``shape``; ``src`` has no R*. ``grad``: the value has a gradient.
    Ensures: after the last step each device holds its part of ``dst``. Steps that shrink the local
    tensor come first, gathers last. Raises IRError where no rule leads from one to the other.
    """
    steps: list[Step] = []
    now = src
    if (axis := only_axis(src, dst, shape)) is not None:  # as most do
        return one_axis(src, axis, dst[axis], shape, grad=grad)
    pending = [axis for axis in src.mesh.names if src[axis] != dst[axis]]
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


def only_axis(src: Layout, dst: Layout, shape: tuple[int, ...]) -> str | None:
    """The axis that is to change, where it is the only one and may do so at once."""
    found = None
    for axis, have, need in zip(src.mesh.names, src.placements, dst.placements, strict=True):
        if have is not need and have != need:
            if found is not None:
                return None
            found = axis
    return found if dst.problem(shape) is None else None


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


# What brings one axis from a placement to another, forward and backward. S to S' only where the factors are disjoint.
_CHANGES: dict[tuple[str, str], tuple[str, str]] = {
    ("S", "R*"): ("all_gather", "reduce_scatter"),
    ("S", "R"): ("all_gather", "slice"),
    ("P", "S"): ("reduce_scatter", "all_gather"),
    ("P", "R"): ("all_reduce", "none"),
    ("P", "R*"): ("all_reduce", "all_reduce"),
    ("P(max)", "R"): ("all_reduce", "none"),
    ("P(max)", "R*"): ("all_reduce", "all_reduce"),
    ("R", "R*"): ("identity", "all_reduce"),
    ("R", "S"): ("slice", "all_gather"),
    ("R", "P"): ("mask", "none"),
    ("S", "S"): ("all_to_all", "all_to_all"),
}


@functools.lru_cache(maxsize=1 << 10)
def _letter(placement: Placement) -> str:
    match placement:
        case Shard():
            return "S"
        case Replicate(star):
            return "R*" if star else "R"
        case Partial(op):
            return "P" if op == "sum" else f"P({op})"


def change(
    now: Layout, axis: str, target: Placement, shape: tuple[int, ...], *, grad: bool
) -> tuple[str, str] | None:
    """Kinds, forward and backward, of the one step that brings one axis to ``target``; None where there is none."""
    have = now[axis]
    kinds = _CHANGES.get((_letter(have), _letter(target)))
    if isinstance(have, Shard) and isinstance(target, Shard) and not _disjoint(now, axis, *target, shape):
        return None
    return kinds if kinds is None or grad else (kinds[0], "none")


def one_axis(
    now: Layout, axis: str, target: Placement, shape: tuple[int, ...], *, grad: bool
) -> tuple[Step, ...]:
    """The step (two where the table needs two) that brings one axis to ``target``."""
    have, kinds = now[axis], change(now, axis, target, shape, grad=grad)
    if kinds is None:
        if not isinstance(have, Shard) or not isinstance(target, Shard | Partial):
            raise IRError(f"no conversion on axis {axis} from {have} to {target} for shape {list(shape)}")
        first = one_axis(now, axis, R, shape, grad=grad)
        return (*first, *one_axis(first[-1].after, axis, target, shape, grad=grad))
    to = now.replace(axis, target)
    at: dict[str, int] = {}
    match have, target:
        case Shard(dim, outer), Shard(dim_to, outer_to):
            at = {"dim": dim, "outer": to.local_outer(dim, outer)}
            at |= {"dim_to": dim_to, "outer_to": now.local_outer(dim_to, outer_to)}
        case (Shard(dim, outer), _) | (_, Shard(dim, outer)):
            cut = now if isinstance(have, Shard) else to
            extent = shape[dim] if cut.padded(dim, shape[dim]) else 0
            at = {"dim": dim, "outer": now.local_outer(dim, outer), "extent": extent}
    reduce = have.op if isinstance(have, Partial) else "sum"
    return (Step(kind=kinds[0], backward=kinds[1], axis=axis, before=now, after=to, reduce=reduce, **at),)


def _disjoint(now: Layout, axis: str, dim: int, outer: int, shape: tuple[int, ...]) -> bool:
    """Whether the factor that ``axis`` is to own is a factor of what it leaves local.

    Two factors of one dim that overlap (8 = k:4 · 2 and 2 · k:4) cannot be exchanged: the pieces that a
    device would send are not contained in what it holds. Padded parts are not exchanged either.
    """
    if now.is_padded(shape) or now.replace(axis, Shard(dim, outer)).is_padded(shape):
        return False
    end = 1
    for at, size, _ in sorted((*now.owners(dim), (outer, now.mesh.size(axis), ""))):
        if at % end or (size > 1 and shape[dim] % (at * size)):
            return False
        end = at * size
    return True


@functools.lru_cache(maxsize=1 << 16)
def local_numel(layout: Layout, shape: tuple[int, ...]) -> int:
    """Elements that one device holds."""
    return math.prod(layout.local_shape(shape))
