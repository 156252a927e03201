"""Between layouts and DTensors.

DTensor knows contiguous shards: axes that share a dim stack in the mesh's order. Of all layouts only those
have a DTensor; a strided one is redistributed first, or refused where it would be stored.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from autopar.ir import layout as ir
from autopar.ir.convert import convert
from autopar.ir.layout import Layout
from autopar.runtime import local
from autopar.runtime.collectives import conversion
from autopar.runtime.devices import Here
from autopar.runtime.moves import of_step


def contiguous(layout: Layout) -> Layout:
    """The same axes on the same dims, stacked in the mesh's order."""
    owned = [(axis, p.dim, 1) for axis, p in _named(layout) if isinstance(p, ir.Shard)]
    return Layout.of(layout.mesh, {**dict(_named(layout)), **ir.stacked(layout.mesh, owned)})


def placements(layout: Layout, axes: tuple[str, ...]) -> tuple[Placement, ...]:
    """DTensor's placements on ``axes``. Requires a contiguous layout."""
    found: list[Placement] = []
    for axis in axes:
        match layout[axis]:
            case ir.Shard(dim):
                found.append(Shard(dim))
            case ir.Partial(op):
                found.append(Partial(op))
            case _:
                found.append(Replicate())
    return tuple(found)


def local_part(tensor: Tensor, layout: Layout, coordinate: Mapping[str, int]) -> Tensor:
    """This device's part of a whole tensor, in memory of its own; not padded."""
    now = Layout.replicated(layout.mesh)
    for axis, placement in _named(layout):
        if isinstance(placement, ir.Shard) and axis in coordinate:
            now = now.replace(axis, placement)
            dim, outer, k = placement.dim, now.local_outer(placement.dim, placement.outer), layout.mesh.size(axis)
            extent = tensor.shape[dim] if layout.padded(dim, tensor.shape[dim]) else 0
            tensor = local.take(tensor, dim, outer, k, coordinate[axis], extent)
            tensor = tensor.narrow(dim, 0, _there(extent, k, coordinate[axis])) if extent else tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def filled(part: Tensor, layout: Layout, shape: tuple[int, ...]) -> Tensor:
    """A device's part with zeros up to the size that every device computes with."""
    for dim, extent in enumerate(shape):
        if layout.padded(dim, extent):
            part = local.fill(part, dim, layout.local_shape(shape)[dim])
    return part


def _there(extent: int, k: int, index: int) -> int:
    """Elements of part ``index`` of a dim that k devices share unevenly."""
    size = -(-extent // k)
    return min(size, extent - index * size)


def as_dtensor(part: Tensor, layout: Layout, shape: tuple[int, ...], here: Here) -> DTensor:
    """A value of a program as a DTensor over the program's mesh; differentiable."""
    target = contiguous(layout)
    for step in convert(layout, target, shape, grad=part.requires_grad):
        if step.axis in here.groups:
            part = conversion(of_step(step), here.groups[step.axis])(part)
    axes = layout.mesh.names
    for dim, extent in enumerate(shape):
        if target.padded(dim, extent):
            ((_, k, axis),) = target.owners(dim)
            part = part.narrow(dim, 0, _there(extent, k, here.coordinate[axis]))
    return DTensor.from_local(
        part, here.submesh(axes), placements(target, axes), run_check=False, shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )  # fmt: skip


def gathered(tensor: Tensor) -> Tensor:
    """All of a DTensor, on every rank; a plain tensor as it is.

    ``full_tensor`` warns where FSDP2 cut what another axis had cut before; gathering FSDP2's axis first, then
    the others from the last, is what it does then, one axis at a time.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    plain = [type(placement) in (Shard, Replicate) for placement in tensor.placements]
    now = list(tensor.placements)
    for at in sorted(range(len(now)), key=lambda index: (plain[index], -index)):
        if not isinstance(now[at], Replicate):
            now[at] = Replicate()
            tensor = tensor.redistribute(placements=now)
    return tensor.to_local()


def _named(layout: Layout) -> list[tuple[str, ir.Placement]]:
    return list(zip(layout.mesh.names, layout.placements, strict=True))
