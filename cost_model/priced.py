"""What a cost is asked for: one op, or one group of ranks that communicate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["forward", "backward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCost:
    """The local work of one op on one device.

    ``target`` is the full ATen name (``aten.linear.default``), ``op_class`` its row's class (``matmul``),
    ``dtype`` the element type it computes in, ``bytes`` all bytes read and written, ``shapes`` the local
    shapes of its operands.
    """

    target: str
    op_class: str
    dtype: str
    flops: int
    bytes: int
    phase: Phase = "forward"
    shapes: tuple[tuple[int, ...], ...] = ()


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
