"""This device's part of a tensor; of a parameter at a third of the price of ``to_local``.

A step reads every parameter once forward and wraps its gradient once backward. ``to_local`` and ``from_local`` check
and copy specifications each time: a tenth of a millisecond a parameter, which the step of a small model notices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from autopar.runtime import torch_private


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, held: DTensor) -> Tensor:
        ctx.spec = torch_private.spec_of(held)
        part: Tensor = held.to_local()  # no graph is recorded in here, so this only looks up
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        # A tensor of its own: autograd adds to the gradient of a leaf in place, and takes over a wrapper that nobody
        # else holds. What is inside may be the gradient of another parameter too, as in ``x + a + b``.
        return torch_private.wrapped(gradients[0].clone(), ctx.spec)


def local_of(held: DTensor) -> Tensor:
    """This device's part, of which the gradient comes back as a DTensor placed like ``held``."""
    part: Tensor = _Read.apply(held) if held.requires_grad else held.to_local()  # type: ignore[no-untyped-call]
    return part


def part_of(tensor: Tensor) -> Tensor:
    """This device's part of a DTensor, and any other tensor as it is."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part
