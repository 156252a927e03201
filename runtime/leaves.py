"""Parameters in a step: their parts here are leaves of autograd, and become gradients of DTensors at its end.

Autograd adds to such a leaf as in a plain model. To a DTensor it adds through two Python functions and a dispatch for
each parameter and microbatch, which costs the step of a small model on a GPU half as much again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.distributed.tensor import DTensor

from autopar.runtime import torch_private
from autopar.runtime.reading import local_of, part_of


class Leaves:
    """Of parameters that no FSDP reduces: it looks for the gradients of its own. Nobody else sees them within a step:
    hooks on gradients are refused."""

    def __init__(self) -> None:
        self._in_step = False
        self._parts: dict[DTensor, Tensor] = {}

    def part(self, held: DTensor) -> Tensor:
        """This device's part, of which the gradient becomes that of ``held``."""
        if not self._in_step or not held.requires_grad or not _adds_in_place(held):
            return local_of(held)
        if held not in self._parts:
            leaf = torch_private.local(held).detach().requires_grad_()
            leaf.grad = None if held.grad is None else part_of(held.grad)
            self._parts[held] = leaf
        return self._parts[held]

    @contextmanager
    def step(self) -> Iterator[None]:
        """Of a step that is broken off, gradients hold what was added until then, as in torch."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
            for held, leaf in self._parts.items():
                if held.grad is None and leaf.grad is not None:
                    held.grad = torch_private.wrapped(leaf.grad, torch_private.spec_of(held))
            self._parts.clear()


def _adds_in_place(held: DTensor) -> bool:
    """Whether parts of its gradient are added to those of the gradient that is there, which a user may have set."""
    there = held.grad
    return there is None or (isinstance(there, DTensor) and there.placements == held.placements)
