"""Cross-entropy as functions of local tensors: whole, and in the parts that may be sharded over classes.

Over classes split between devices the loss of a row is ``c · log(sum of exp) - p``, with x counted from
the row's maximum over all devices. Three sums over classes make it up, each of this device's part:

    s = sum exp(x)        p = sum q·w·x        c = sum q·w

q is the target distribution: 1 at the target class (or a row of probabilities), smoothed to
``(1 - e) q + e / classes``; w are class weights. Without weights and with class targets c is 1 and left out.
So two or three numbers a row are reduced, and the logits are never gathered.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "count_targets",
    "cross_entropy",
    "cross_entropy_from_stats",
    "cross_entropy_rows",
    "cross_entropy_rows_from_stats",
    "cross_entropy_stats",
    "row_max",
    "soft_cross_entropy_rows",
    "soft_cross_entropy_stats",
]


def row_max(logits: Tensor, *, start: int = 0, classes: int = 0) -> Tensor:
    """Largest value over the last dim, outside autograd: any shift of the logits gives the same loss."""
    return _real(logits.detach(), start, classes).amax(dim=-1)


def _real(x: Tensor, start: int, classes: int) -> Tensor:
    """The classes of this shard that there are: the last shard may be filled up. ``classes`` 0: all."""
    return x[..., : max(0, classes - start)] if classes else x


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sum of the cross-entropy of ``logits[..., v]`` over targets that are not ``ignore_index``."""
    rows = cross_entropy_rows(
        logits, target, weight, ignore_index=ignore_index, label_smoothing=label_smoothing, dtype=dtype
    )
    return rows.sum()


def cross_entropy_rows(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """[...]: the cross-entropy of each row of ``logits[..., v]``, 0 where the target is ``ignore_index``.

    Sums run in ``dtype``, that of the logits if it is absent.
    """
    classes = logits.shape[-1]
    if dtype is not None and dtype != logits.dtype:
        stats = cross_entropy_stats(
            logits, target, row_max(logits), weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
            classes=classes, dtype=dtype,
        )  # fmt: skip
        return cross_entropy_rows_from_stats(stats, target, ignore_index=ignore_index)
    return F.cross_entropy(
        logits.reshape(-1, classes), target.reshape(-1), weight, ignore_index=ignore_index, reduction="none",
        label_smoothing=label_smoothing,
    ).reshape(target.shape)  # fmt: skip


def soft_cross_entropy_rows(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    dtype: torch.dtype,
) -> Tensor:
    """[...]: the cross-entropy of each row of ``logits[..., v]`` and the probabilities ``target[..., v]``."""
    stats = soft_cross_entropy_stats(
        logits, target, row_max(logits), weight, label_smoothing=label_smoothing, classes=logits.shape[-1], dtype=dtype
    )  # fmt: skip
    return cross_entropy_rows_from_stats(stats)


def count_targets(
    target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, dtype: torch.dtype
) -> Tensor:
    """Number, or total class weight, of the targets that are not ``ignore_index``: a 0-dim float."""
    valid = target != ignore_index
    if weight is None:
        return valid.sum().to(dtype)
    return (weight.to(dtype)[torch.where(valid, target, 0)] * valid).sum()


class _Stats(torch.autograd.Function):
    """Keeps the logits alone; plain autograd would hold three more tensors of their size in backward.

    ``at``: the weight of the target class in each row, ``everywhere``: weights that each row gives to all
    classes, a number or a vector.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, index: Tensor, at: Tensor, everywhere: Tensor | float, top: Tensor, dtype: torch.dtype
    ) -> Tensor:  # fmt: skip
        spread = everywhere if isinstance(everywhere, Tensor) else None
        ctx.save_for_backward(logits, index, at, top, *([] if spread is None else [spread]))
        ctx.everywhere = everywhere if spread is None else None
        shifted = _wide(logits) - _wide(top).unsqueeze(-1)
        picked = torch.where(at != 0, at * shifted.gather(-1, index).squeeze(-1), 0.0)  # 0 · -inf is NaN
        if spread is not None:
            picked = picked + shifted @ spread.to(shifted.dtype)
        elif everywhere:
            picked = picked + everywhere * shifted.sum(dim=-1)
        return torch.stack((shifted.exp_().sum(dim=-1), picked), dim=-1).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        logits, index, at, top, *rest = ctx.saved_tensors
        into = (_wide(logits) - _wide(top).unsqueeze(-1)).exp_()
        gradient = gradients[0].to(into.dtype)
        into.mul_(gradient[..., :1])
        if rest:
            into.addcmul_(gradient[..., 1:], rest[0].to(into.dtype))
        elif ctx.everywhere:
            into.add_(gradient[..., 1:], alpha=ctx.everywhere)
        into.scatter_add_(-1, index, (gradient[..., 1] * at).unsqueeze(-1))
        return into.to(logits.dtype), None, None, None, None, None


def cross_entropy_stats(
    logits: Tensor,
    target: Tensor,
    top: Tensor,
    weight: Tensor | None = None,
    *,
    start: int = 0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    classes: int = 0,
    dtype: torch.dtype,
) -> Tensor:
    """[..., 2]: s and p of this shard's classes, ``start`` … of ``classes``; [..., 3], c last, with weights.

    ``weight`` is that of this shard.
    """
    logits = _real(logits, start, classes)
    weight = None if weight is None else _real(weight, start, classes)
    count = logits.shape[-1]
    inside = (target >= start) & (target < start + count) & (target != ignore_index)
    index = torch.where(inside, target - start, 0)
    wide = torch.promote_types(logits.dtype, torch.float32)
    at = inside.to(wide) * (1.0 - label_smoothing)
    share = label_smoothing / classes if label_smoothing else 0.0
    everywhere: Tensor | float = share
    if weight is not None:
        weight = weight.detach().to(wide)
        at = at * weight[index]
        everywhere = weight * share if share else 0.0
    stats: Tensor = _Stats.apply(logits, index.unsqueeze(-1), at, everywhere, top, dtype)  # type: ignore[no-untyped-call]
    if weight is None:
        return stats
    total = at + everywhere.sum() if isinstance(everywhere, Tensor) else at
    return torch.cat((stats, total.to(dtype).unsqueeze(-1)), dim=-1)


class _SoftStats(torch.autograd.Function):
    """Keeps the logits and the distribution. c has no gradient of its own unless the distribution has."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, weight: Tensor | None, top: Tensor, keep: float, share: float,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(logits, target, top, *([] if weight is None else [weight]))
        ctx.keep, ctx.share = keep, share
        shifted = _wide(logits) - _wide(top).unsqueeze(-1)
        given = _distribution(target, weight, keep, share, shifted.dtype)
        picked, total = (given * shifted).sum(dim=-1), given.sum(dim=-1)
        return torch.stack((shifted.exp_().sum(dim=-1), picked, total), dim=-1).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        logits, target, top, *rest = ctx.saved_tensors
        weight = rest[0] if rest else None
        shifted = _wide(logits) - _wide(top).unsqueeze(-1)
        gradient = gradients[0].to(shifted.dtype)
        to_target = None
        if ctx.needs_input_grad[1]:
            to_target = (gradient[..., 1:2] * shifted).add_(gradient[..., 2:]).mul_(ctx.keep)
            to_target = (to_target if weight is None else to_target.mul_(weight.to(shifted.dtype))).to(target.dtype)
        given = _distribution(target, weight, ctx.keep, ctx.share, shifted.dtype)
        into = shifted.exp_().mul_(gradient[..., :1]).addcmul_(gradient[..., 1:2], given)
        return into.to(logits.dtype), to_target, None, None, None, None, None


def _distribution(
    target: Tensor, weight: Tensor | None, keep: float, share: float, dtype: torch.dtype
) -> Tensor:
    """The smoothed distribution times the class weights."""
    given = target.to(dtype)
    given = given * keep + share if share else given
    return given if weight is None else given * weight.to(dtype)


def soft_cross_entropy_stats(
    logits: Tensor,
    target: Tensor,
    top: Tensor,
    weight: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    classes: int = 0,
    dtype: torch.dtype,
) -> Tensor:
    """[..., 3]: s, p and c of this shard's classes; ``target`` holds probabilities of this shard's classes."""
    share = label_smoothing / classes if label_smoothing else 0.0
    result: Tensor = _SoftStats.apply(  # type: ignore[no-untyped-call]
        logits, target, None if weight is None else weight.detach(), top, 1.0 - label_smoothing, share, dtype
    )
    return result


def cross_entropy_rows_from_stats(
    stats: Tensor, target: Tensor | None = None, *, ignore_index: int = -100
) -> Tensor:
    """[...]: the loss of each row from reduced stats [..., 2] or [..., 3]; 0 where the target is ignored."""
    spread = stats[..., 0].log()
    rows = (spread if stats.shape[-1] == 2 else spread * stats[..., 2]) - stats[..., 1]
    return rows if target is None else torch.where(target != ignore_index, rows, 0.0)


def cross_entropy_from_stats(stats: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """The sum of the rows' losses, from reduced ``stats``."""
    return cross_entropy_rows_from_stats(stats, target, ignore_index=ignore_index).sum()


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums of exponentials do not fit a 16-bit mantissa."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
