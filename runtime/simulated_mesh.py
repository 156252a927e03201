"""A mesh simulated in one process: a value is a list of tensors, one for each rank.

The reference for what a program means. A conversion's backward is the step's declared backward, never
the derivative of the joint graph, so a wrong declaration gives the wrong gradients here as it would on
real devices. Microbatches (the axis ``mb``) are one more axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from autopar.ir.convert import Step
from autopar.ir.errors import VerificationError
from autopar.ir.layout import Layout, Partial, R, Shard
from autopar.ir.mesh import Mesh
from autopar.runtime import local
from autopar.runtime.dtypes import as_real
from autopar.runtime.moves import Move, TwoWay, of_step

Values: TypeAlias = list[Tensor]


def move(values: Sequence[Tensor], mesh: Mesh, step: Move) -> Values:
    """What every rank holds after ``step``."""
    result: list[Tensor | None] = [None] * len(values)
    for rank, position in enumerate(mesh.coordinates()):
        if position[step.axis] == 0:
            group = mesh.group(rank, step.axis)
            for member, value in zip(group, _among([values[m] for m in group], step), strict=True):
                result[member] = value
    return [value for value in result if value is not None]


def _among(group: Values, step: Move) -> Values:
    """The same for the ranks of one group along the axis."""
    k = len(group)
    match step.kind:
        case "identity":
            return list(group)
        case "mask":
            return [group[0], *(torch.zeros_like(x) for x in group[1:])]
        case "slice":
            return [local.take(x, step.dim, step.outer, k, i, step.extent) for i, x in enumerate(group)]
        case "all_gather":
            return [local.place(torch.stack(group), step.dim, step.outer, step.extent)] * k
        case "all_reduce":
            return [_reduce(group, step.reduce)] * k
        case "reduce_scatter":
            total = _reduce(group, step.reduce)
            return [local.take(total, step.dim, step.outer, k, i, step.extent) for i in range(k)]
        case "all_to_all":
            sent = [local.to_front(x, step.dim_to, step.outer_to, k) for x in group]
            return [local.place(torch.stack([x[i] for x in sent]), step.dim, step.outer) for i in range(k)]
    raise ValueError(f"no such step: {step.kind}")


def _reduce(group: Values, how: str) -> Tensor:
    stacked = torch.stack(group)
    if how == "max":
        return stacked.amax(dim=0)
    return stacked.mean(dim=0) if how == "mean" else stacked.sum(dim=0)


class _Conversion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mesh: Mesh, step: TwoWay, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.mesh, ctx.step = mesh, step
        results = tuple(x.clone() for x in move(values, mesh, step.forward))
        if not step.differentiable:
            ctx.mark_non_differentiable(*results)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        if not ctx.step.differentiable:
            return (None, None, *(None for _ in gradients))
        return (None, None, *(x.clone() for x in move(gradients, ctx.mesh, ctx.step.backward)))


def run_step(values: Values, mesh: Mesh, step: TwoWay) -> Values:
    """One differentiable conversion."""
    return list(_Conversion.apply(mesh, step, *values))  # type: ignore[no-untyped-call]


def run_steps(values: Values, steps: Iterable[Step]) -> Values:
    """The steps of ``convert``, one after the other."""
    for step in steps:
        values = run_step(values, step.before.mesh, of_step(step))
    return values


def shard(tensor: Tensor, layout: Layout) -> Values:
    """Each rank's part of a whole tensor; the first device of a Partial(sum) axis holds all of it."""
    held, now = [tensor] * layout.mesh.world_size, Layout.replicated(layout.mesh)
    for axis, placement in zip(layout.mesh.names, layout.placements, strict=True):
        now = now.replace(axis, placement)
        if isinstance(placement, Shard):
            dim, outer = placement.dim, now.local_outer(placement.dim, placement.outer)
            extent = tensor.shape[dim] if layout.padded(dim, tensor.shape[dim]) else 0
            held = move(held, layout.mesh, Move(kind="slice", axis=axis, dim=dim, outer=outer, extent=extent))
        elif placement == Partial("sum"):
            held = move(held, layout.mesh, Move(kind="mask", axis=axis))
    return held


def unshard(values: Values, layout: Layout, shape: tuple[int, ...] = ()) -> Tensor:
    """The whole tensor that the ranks hold together. ``shape``: of the whole, needed where parts are padded.

    Raises VerificationError where devices that should hold the same do not.
    """
    held, now = list(values), layout
    for axis in reversed(layout.mesh.names):
        match now[axis]:
            case Shard(dim, outer):
                extent = shape[dim] if shape and layout.padded(dim, shape[dim]) else 0
                outer = now.local_outer(dim, outer)
                step = Move(kind="all_gather", axis=axis, dim=dim, outer=outer, extent=extent)
                held = move(held, layout.mesh, step)
            case Partial(op):
                held = move(held, layout.mesh, Move(kind="all_reduce", axis=axis, reduce=op))
            case _:
                _check_replicas(held, layout, axis)
        now = now.replace(axis, R)
    return held[0]


def _check_replicas(values: Values, layout: Layout, axis: str) -> None:
    values = [as_real(value) for value in values]
    tolerance = 1e-9 if values[0].dtype == torch.float64 else 1e-5
    for rank, value in enumerate(values):
        first = values[layout.mesh.group(rank, axis)[0]]
        if value.shape != first.shape or not torch.allclose(
            value.double(), first.double(), rtol=tolerance, atol=tolerance, equal_nan=True
        ):
            raise VerificationError(
                f"devices of axis {axis} differ where the layout {layout} says replicated"
            )
