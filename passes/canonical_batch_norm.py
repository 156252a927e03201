"""Batch norm written out: sums over the batch, then arithmetic on each channel.

A sum over a sharded batch is Partial and reduced like any other, so the statistics are those of the whole batch
on every mesh, and their gradients too.

    %mean = Σ x / n    %var = Σ (x - %mean)² / n    %y = (x - %mean) · (w · rsqrt(%var + eps)) + b

The scale is one value a channel: only x - mean, as large as the batch, is kept for the backward pass.
"""

from __future__ import annotations

import math

from autopar.ir.graph import Node, Operand
from autopar.ir.types import TensorType
from autopar.passes.canonical_arith import mean, scaled
from autopar.passes.canonical_emit import DETACH, Emitter
from autopar.passes.canonical_views import Rule, cast, operand, reshape

_HALF = ("bf16", "f16")


def _batch_norm(em: Emitter, node: Node) -> tuple[str, ...]:
    """``aten.batch_norm``: by its own statistics, or by those given in evaluation; nothing is changed."""
    channels = _Channels(em, node)
    if node.attr("training", False) or _given(node, 3) is None:
        centred, _, variance = channels.statistics()
    else:
        centred, variance = channels.centred(channels.wide(_given(node, 3))), channels.wide(_given(node, 4))
    return (channels.normalized(centred, variance),)


def _tracking(em: Emitter, node: Node) -> tuple[str, ...]:
    """``autopar.batch_norm``: in training, and the running statistics that follow."""
    channels = _Channels(em, node)
    centred, mean_, variance = channels.statistics()
    momentum = node.attr("momentum", 0.1)
    assert isinstance(momentum, (int, float))
    unbiased = channels.count / max(channels.count - 1, 1)
    news = (
        channels.moved(operand(node, 3), mean_, momentum, 1.0),
        channels.moved(operand(node, 4), variance, momentum, unbiased),
    )
    return (channels.normalized(centred, variance), *news)


class _Channels:
    """One batch norm: statistics are [1, c, 1, …] in the type it computes in, f32 for half precision."""

    def __init__(self, em: Emitter, node: Node) -> None:
        self.em, self.node = em, node
        kind = em.types[operand(node)]
        self.dtype = "f32" if kind.dtype in _HALF else kind.dtype
        self.shape = (1, kind.shape[1], *(1,) * (len(kind.shape) - 2))
        self.dims = (0, *range(2, len(kind.shape)))
        self.count = math.prod(kind.shape[dim] for dim in self.dims)
        self.x = cast(em, operand(node), self.dtype)

    def wide(self, name: Operand) -> str:
        assert isinstance(name, str)
        return reshape(self.em, cast(self.em, name, self.dtype), self.shape)

    def centred(self, mean_: str) -> str:
        return self.em.op("aten.sub.Tensor", self.x, mean_, type=self.em.types[self.x])

    def statistics(self) -> tuple[str, str, str]:
        """``x - mean``, mean and biased variance of the batch."""
        mean_ = mean(self.em, self.x, self.dims, True, self.dtype)
        centred = self.centred(mean_)
        square = self.em.op("aten.square.default", centred, type=self.em.types[centred])
        return centred, mean_, mean(self.em, square, self.dims, True, self.dtype)

    def normalized(self, centred: str, variance: str) -> str:
        em, kind = self.em, TensorType(self.dtype, self.shape)
        shifted = em.op("aten.add.Tensor", variance, type=kind, other=self.node.attr("eps", 1e-5))
        scale = em.op("aten.rsqrt.default", shifted, type=kind)
        weight, bias = _given(self.node, 1), _given(self.node, 2)
        if weight is not None:
            scale = em.op("aten.mul.Tensor", scale, self.wide(weight), type=kind)
        y = em.op("aten.mul.Tensor", centred, scale, type=em.types[self.x])
        if bias is not None:
            y = em.op("aten.add.Tensor", y, self.wide(bias), type=em.types[self.x])
        return cast(em, y, self.node.results[0].type.dtype)

    def moved(self, running: str, statistic: str, momentum: float, factor: float) -> str:
        """``(1 - momentum) · running + momentum · factor · statistic``, in the type that is kept."""
        em, kept = self.em, self.em.types[running]
        if em.learns(statistic):
            statistic = em.op(DETACH, statistic, type=em.types[statistic])
        part = reshape(em, scaled(em, statistic, momentum * factor), kept.shape)
        old = scaled(em, cast(em, running, self.dtype), 1 - momentum)
        return cast(em, em.op("aten.add.Tensor", old, part, type=em.types[part]), kept.dtype)


def _given(node: Node, at: int) -> Operand:
    return node.operands[at] if len(node.operands) > at else None


RULES: dict[str, Rule] = {
    "aten.batch_norm.default": _batch_norm,
    "autopar.batch_norm": _tracking,
}
