"""Conversions on real process groups, differentiable as declared.

Everything goes through the in-place collectives of ``torch.distributed``, which torch.compile rewrites
into functional ones when it traces them. What is sent is made contiguous first; what arrives is new memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.runtime import local
from autopar.runtime.dtypes import as_real
from autopar.runtime.moves import Move, TwoWay

Mover: TypeAlias = Callable[..., Tensor]

REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "mean": dist.ReduceOp.SUM}

# torch 2.13 renamed both; the old names warn there.
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def move(x: Tensor, group: dist.ProcessGroup, rank: int, size: int, step: Move) -> Tensor:
    """This device's value after ``step``; ``rank`` of ``size`` is its position in the group."""
    return begin(x, group, rank, size, step, later=False)()


def begin(
    x: Tensor, group: dist.ProcessGroup, rank: int, size: int, step: Move, *, later: bool
) -> Callable[[], Tensor]:
    """Start ``step``; what is returned ends it and gives the value. ``later``: do not wait before that."""
    if x.is_complex() and step.kind not in ("identity", "mask", "slice"):
        end = begin(as_real(x), group, rank, size, step, later=later)
        return lambda: torch.view_as_complex(end())
    match step.kind:
        case "identity":
            return lambda: x
        case "mask":
            return lambda: x if rank == 0 else torch.zeros_like(x)
        case "slice":
            return lambda: local.take(x, step.dim, step.outer, size, rank, step.extent).contiguous()
        case "all_gather":
            pieces = x.new_empty((size * x.shape[0], *x.shape[1:]) if x.dim() else (size,))
            work = all_gather(pieces, x.contiguous(), group=group, async_op=later)
            return lambda: local.place(_there(pieces, work).view(size, *x.shape), step.dim, step.outer, step.extent)
        case "all_reduce":
            total = x.clone(memory_format=torch.contiguous_format)
            work = dist.all_reduce(total, op=REDUCE_OPS[step.reduce], group=group, async_op=later)
            return lambda: _mean(_there(total, work), size, step.reduce)
        case "reduce_scatter":
            parts = local.to_front(x, step.dim, step.outer, size, step.extent)
            mine = parts.new_empty(parts.shape[1:])
            op = REDUCE_OPS[step.reduce]
            work = reduce_scatter(mine, parts.flatten(0, 1), op=op, group=group, async_op=later)
            return lambda: _mean(_there(mine, work), size, step.reduce)
        case "all_to_all":
            sent = local.to_front(x, step.dim_to, step.outer_to, size)
            got = torch.empty_like(sent)
            work = dist.all_to_all_single(got.flatten(0, 1), sent.flatten(0, 1), group=group, async_op=later)
            return lambda: local.place(_there(got, work), step.dim, step.outer)
    raise ValueError(f"no such step: {step.kind}")


def _there(received: Tensor, work: Any) -> Tensor:
    if work is not None and not isinstance(work, Tensor):  # torch 2.11, when it compiles, gives what arrived
        work.wait()
    return received


def returned(made: Tensor) -> Tensor:
    """What the forward of a Function made, to be returned by it.

    Where torch 2.11 compiles, one that was changed in place would have no gradient.
    """
    return made.view_as(made) if torch.compiler.is_compiling() else made


def _mean(total: Tensor, size: int, reduce: str) -> Tensor:
    return total.div_(size) if reduce == "mean" else total


class _Conversion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup, rank: int, size: int, step: TwoWay, mover: Mover, wide: bool
    ) -> Tensor:
        ctx.group, ctx.rank, ctx.size, ctx.step, ctx.wide = group, rank, size, step, wide
        result = mover(x, group, rank, size, step.forward)
        return result.view_as(x) if result is x else returned(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        given = gradients[0].float() if ctx.wide else gradients[0]
        found = move(given, ctx.group, ctx.rank, ctx.size, ctx.step.backward)
        return found.to(gradients[0].dtype), None, None, None, None, None, None


def conversion(
    step: TwoWay, group: dist.ProcessGroup, mover: Mover = move, *, wide: bool = False
) -> Callable[[Tensor], Tensor]:
    """The step as a function of this device's tensor. ``mover`` does it forward.

    ``wide``: gradients in half precision are summed in float32.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)

    def convert(x: Tensor) -> Tensor:
        if step.differentiable:
            adds = step.backward.kind in ("all_reduce", "reduce_scatter")
            float32 = wide and adds and x.dtype in (torch.bfloat16, torch.float16)
            result: Tensor = _Conversion.apply(x, group, rank, size, step, mover, float32)  # type: ignore[no-untyped-call]
            return result
        return mover(x.detach(), group, rank, size, step.forward)

    convert.__name__ = f"{step.forward.kind}_{step.forward.axis}"
    return convert
