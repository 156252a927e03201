"""Sums of gradients that wait for the end of a step: one collective for all of them, not one each a microbatch.

A step's backward leaves the parts of the gradients where they are; its end adds them up over their axes in one
buffer. Gradients of earlier steps, already added up, are put aside meanwhile. Outside of a step (``forward`` and the
user's own ``backward``) nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autopar.ir.program import Parameter
from autopar.runtime.collectives import conversion
from autopar.runtime.devices import Here
from autopar.runtime.moves import Move, TwoWay
from autopar.runtime.reading import part_of


class StepSums:
    """Of a program's parameters; ``held``: as the user sees them."""

    def __init__(self, described: Sequence[Parameter], held: Mapping[str, Tensor], here: Here) -> None:
        self._waits = False
        self._members: dict[tuple[str, ...], list[nn.Parameter]] = {}
        self._groups = here.groups
        self._converted = {axis: conversion(_sum_over(axis), group) for axis, group in here.groups.items()}
        for parameter in described:
            axes = tuple(axis for axis in parameter.step_axes if axis in here.groups)
            own = held.get(parameter.fqn)
            if axes and isinstance(own, nn.Parameter):
                self._members.setdefault(axes, []).append(own)

    def now(self, parameter: Parameter, read: Tensor) -> Tensor:
        """What a graph computes with: outside of a step its gradients are added up in the backward pass."""
        for axis in () if self._waits or not read.requires_grad else parameter.step_axes:
            if axis in self._converted:
                read = self._converted[axis](read)
        return read

    @contextmanager
    def once(self) -> Iterator[None]:
        """A step: its end is a collective of the ranks along the axes."""
        if not self._members:
            yield
            return
        members = [parameter for found in self._members.values() for parameter in found]
        earlier = [parameter.grad for parameter in members]
        self._set(members, [None] * len(members))
        self._waits = True
        try:
            yield
            for axes, found in self._members.items():
                self._add_up([p.grad for p in found if p.grad is not None], axes)
        except BaseException:
            self._set(members, [None] * len(members))  # parts of sums are nobody's gradients
            raise
        finally:
            self._waits = False
            self._set(members, [_joined(old, p.grad) for old, p in zip(earlier, members, strict=True)])

    def _add_up(self, gradients: Sequence[Tensor], axes: tuple[str, ...]) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            part = part_of(gradient)
            by_dtype.setdefault(part.dtype, []).append(part)
        for parts in by_dtype.values():
            bucket = torch.cat([part.flatten() for part in parts])
            for axis in axes:
                dist.all_reduce(bucket, group=self._groups[axis])
            for part, total in zip(parts, bucket.split([part.numel() for part in parts]), strict=True):
                part.copy_(total.view(part.shape))

    @staticmethod
    def _set(members: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(members, gradients, strict=True):
            parameter.grad = gradient


def _sum_over(axis: str) -> TwoWay:
    """R → R*."""
    forward, backward = Move(kind="identity", axis=axis), Move(kind="all_reduce", axis=axis)
    return TwoWay(forward=forward, backward=backward, differentiable=True)


def _joined(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """The gradients of earlier steps with those of this one, in the tensor that the user may hold."""
    if old is None or new is None:
        return new if old is None else old
    part_of(old).add_(part_of(new))
    return old
