"""What a cost is asked for: one op, or one group of ranks that communicate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autopar.ir.rules import Row
from autopar.ir.types import DTYPE_BYTES, FLOAT_DTYPES

Phase: TypeAlias = Literal["forward", "backward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCost:
    """The local work of one op on one device.

    ``target`` is the full ATen name (``aten.linear.default``), ``op_class`` its row's class (``matmul``),
    ``dtype`` the element type it computes in, ``bytes`` all bytes read and written, ``shapes`` the local
    shapes of its operands. ``mixed_elements``: how many a device goes through one by one, since tensors of an
    elementwise op differ in shape or floating-point type; else 0.
    """

    target: str
    op_class: str
    dtype: str
    flops: int
    bytes: int
    phase: Phase = "forward"
    shapes: tuple[tuple[int, ...], ...] = ()
    mixed_elements: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The ranks along one mesh axis that communicate: ``size`` of them on ``nodes`` nodes.

    ``ranks_per_node`` is how many of them share a node (the most, where nodes differ), so the device's
    other ranks form ``gpus per node / ranks_per_node`` groups that use the node's network at the same time.
    """

    axis: str
    size: int
    ranks_per_node: int
    nodes: int


def each_way_bytes(exchanged: int, marks: int) -> int:
    """Of rows that go to experts and back, and so again in backward, each way; ``marks``, which go once, shared out."""
    return exchanged + marks // 4


def work(
    target: str,
    entry: Row,
    flops: int,
    tensors: Sequence[tuple[tuple[int, ...], str]],
    drawn: int,
    wanted: Sequence[bool],
    beside: int = 0,
    *,
    joined: bool = False,
    by_elements: bool = True,
) -> tuple[OpCost | None, OpCost | None]:
    """What an op of ``entry`` costs one device forward and backward, None where that is nothing.

    ``tensors``: local shape and dtype of each operand and result; ``drawn``: elements of the first result;
    ``wanted``: which of the operands that may have a gradient get one; ``beside``: numbers read and written besides
    (``Row.moved``); ``joined``: another op does its forward, so its tensors need not be alike;
    ``by_elements``: whether mixed elements are of interest.
    """
    dtype = entry.computes or next((dtype for _, dtype in reversed(tensors) if dtype in FLOAT_DTYPES), "i64")
    moved = sum(math.prod(shape) * DTYPE_BYTES[kind] for shape, kind in tensors) + beside * DTYPE_BYTES[dtype]
    shapes = tuple(shape for shape, _ in tensors)
    mixed = _mixed(tensors) if by_elements and entry.op_class == "pointwise" and not joined else 0

    def cost(phase: Phase, share: float, extra: int, times: int = 1) -> OpCost:
        return OpCost(
            target=target, op_class=entry.op_class, dtype=dtype, flops=round(flops * share),
            bytes=round(moved * share) + extra, phase=phase, shapes=shapes, mixed_elements=mixed * times,
        )  # fmt: skip

    forward = None if joined else cost("forward", 1.0, entry.work_bytes * drawn)
    if not any(wanted):
        return forward, None
    part = sum(wanted) / len(wanted) if entry.op_class in ("matmul", "conv") else 1.0
    return forward, cost("backward", entry.backward * part, 0, sum(wanted) if entry.backward else 0)


def _mixed(tensors: Sequence[tuple[tuple[int, ...], str]]) -> int:
    """Elements of the largest, if shapes or kinds of floating point differ; single numbers aside."""
    shapes = {shape for shape, _ in tensors if math.prod(shape) > 1}
    floats = {kind for shape, kind in tensors if kind in FLOAT_DTYPES and math.prod(shape) > 1}
    return max(map(math.prod, shapes)) if len(shapes) > 1 or len(floats) > 1 else 0
