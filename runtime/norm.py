"""Gradient norm across every mesh that the parameters live on.

torch's ``clip_grad_norm_`` refuses gradients on different meshes. Here: the sum of squares of the local
shards, summed over the mesh axes that shard them, for each combination apart; then everything is added.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from autopar.runtime.reading import part_of


def grad_norm(parameters: Iterable[nn.Parameter], device: torch.device) -> Tensor:
    """2-norm of all gradients together; a tied parameter counts once. A collective of all ranks."""
    squares: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[Tensor]] = {}
    for parameter in dict.fromkeys(parameters):
        gradient = parameter.grad
        if not parameter.requires_grad:
            continue
        mesh, dims = _shards(parameter)
        # A rank may hold no part of a gradient that others hold: it takes part with zero.
        part = torch.zeros((), device=device) if gradient is None else _square(gradient)
        squares.setdefault((mesh, dims), []).append(part)
    total = torch.zeros((), device=device)
    for (mesh, dims), parts in squares.items():
        subtotal = torch.stack([part.to(_widest(parts)) for part in parts]).sum()
        for dim in dims:
            assert mesh is not None
            dist.all_reduce(subtotal, group=mesh.get_group(dim))
        total = total + subtotal
    return total.sqrt()


def clip_(parameters: Iterable[nn.Parameter], norm: Tensor, max_norm: float) -> None:
    """Scale all gradients by ``max_norm / norm`` where that is below 1."""
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in dict.fromkeys(parameters):
        if parameter.grad is not None:
            part = part_of(parameter.grad)
            part.mul_(scale.to(part.dtype))


def _shards(parameter: nn.Parameter) -> tuple[DeviceMesh | None, tuple[int, ...]]:
    data = parameter.data
    if not isinstance(data, DTensor):
        return None, ()
    dims = tuple(i for i, placement in enumerate(data.placements) if not isinstance(placement, Replicate))
    return data.device_mesh, tuple(i for i in dims if data.device_mesh.size(i) > 1)


def _square(gradient: Tensor) -> Tensor:
    part = part_of(gradient).detach()
    return (part if part.dtype == torch.float64 else part.float()).square().sum()


def _widest(parts: list[Tensor]) -> torch.dtype:
    return torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
