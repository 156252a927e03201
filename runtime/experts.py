"""Experts as one operation: each token goes through the few experts that were chosen for it.

    result[t] = sum over k of weight[t, k] · down[e] · gate(up[e] · x[t] + up_bias[e])    with e = index[t, k] - start

x [T, H] · index, weight [T, K] · up [E, c I, H], c = 2 for a gated one, else 1 · down [E, H, I] · up_bias [E, c I] ·
``transposed``: up [E, H, c I], down [E, I, H]. An index whose expert is not among the E that are here adds nothing.

Rows of the tokens are put in order of their experts and multiplied expert by expert. Autograd keeps the operands, the
order, and what the first projection gave. Rows of one token are added up in order of k, so equal calls have equal bits.
It is one operation of what ``torch.export`` makes; ``torch.compile`` calls it between two graphs.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from autopar.ir.gates import Gate
from autopar.runtime.gates import gate_backward, gated

_library = torch.library.Library("autopar", "FRAGMENT")
_WEIGHTS = "Tensor x, Tensor index, Tensor weight, Tensor up, Tensor down, Tensor? up_bias"
_HOW = "str gate, bool transposed=False, int start=0"
_library.define(f"experts({_WEIGHTS}, *, {_HOW}) -> Tensor")
_library.define(f"experts_forward({_WEIGHTS}, *, {_HOW}) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    "experts_backward(Tensor grad, Tensor x, Tensor weight, Tensor up, Tensor down, Tensor inner, Tensor order, "
    "Tensor ends, *, str gate, bool transposed) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def experts(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None = None, *,
    gate: str, transposed: bool = False, start: int = 0,
) -> Tensor:  # fmt: skip
    """The operation, differentiable in all but the index."""
    if torch.compiler.is_exporting():
        return _whole(x, index, weight, up, down, up_bias, gate=gate, transposed=transposed, start=start)
    result: Tensor = _computed(x, index, weight, up, down, up_bias, gate, transposed, start)
    return result


@torch.compiler.disable  # type: ignore[untyped-decorator]  # its shapes are data: a compiled graph ends before it, and another goes on
def _computed(*args: Any) -> Tensor:
    result: Tensor = _Experts.apply(*args)  # type: ignore[no-untyped-call]
    return result


def expert_bias(index: Tensor, weight: Tensor, bias: Tensor, *, start: int = 0) -> Tensor:
    """``sum over k of weight[t, k] · bias[index[t, k] - start]`` [T, H], of a bias [E, H]: linear in both."""
    here = index - start
    inside = (here >= 0) & (here < bias.shape[0])
    of_each = torch.where(inside, weight, 0)
    mixed = of_each.new_zeros(index.shape[0], bias.shape[0])
    return mixed.scatter_add(1, torch.where(inside, here, 0), of_each).to(bias.dtype) @ bias


def _forward(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, *,
    gate: str, transposed: bool = False, start: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Result, what the first projection gave [rows, c I], the rows' places in the index, and where experts end."""
    order, ends = in_order(index, start, up.shape[0])
    bounds = ends.tolist()
    inner = of_each(x[order // index.shape[1]], up, bounds, transposed=transposed)
    if up_bias is not None:
        inner += spread(up_bias, ends, bounds)
    rows = of_each(gated(Gate.parse(gate), inner), down, bounds, transposed=transposed)
    rows = rows * weight.reshape(-1)[order].unsqueeze(-1)
    return summed(rows, order, index.shape).to(x.dtype), inner, order, ends


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, up: Tensor, down: Tensor, inner: Tensor, order: Tensor, ends: Tensor, *,
    gate: str, transposed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, up, down and up_bias."""
    how, bounds, token = Gate.parse(gate), ends.tolist(), order // weight.shape[1]
    given, share = grad[token], weight.reshape(-1)[order].unsqueeze(-1)
    middle = gated(how, inner)
    of_middle = of_each(given, down, bounds, transposed=not transposed)
    of_weight = torch.zeros_like(weight).reshape(-1)
    of_weight[order] = (of_middle * middle).sum(-1, dtype=weight.dtype)
    of_inner = gate_backward(how, inner, (of_middle * share).to(inner.dtype))
    of_x = summed(of_each(of_inner, up, bounds, transposed=not transposed), order, weight.shape)
    of_rows = (given * share).to(given.dtype)
    of_down = of_weights(of_rows, middle, down, bounds, transposed=transposed)
    of_up = of_weights(of_inner, x[token], up, bounds, transposed=transposed)
    return of_x.to(x.dtype), of_weight.view_as(weight), of_up, of_down, bias_gradient(of_inner, bounds)


def in_order(index: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Places in the flattened index whose expert is among ``count`` from ``start`` on, by expert, then in order; and
    after how many of them each expert ends."""
    here = index.reshape(-1) - start
    known, order = torch.sort(torch.where((here >= 0) & (here < count), here, count), stable=True)
    ends = torch.searchsorted(known, torch.arange(count, device=index.device, dtype=known.dtype), right=True)
    return order[: int(ends[-1])], ends


def of_each(rows: Tensor, weights: Tensor, ends: list[int], *, transposed: bool) -> Tensor:
    """``rows`` of each expert times its matrix, [rows, out], of weights [E, out, in], or [E, in, out] transposed."""
    turned = weights if transposed else weights.transpose(1, 2)
    made = rows.new_empty(rows.shape[0], turned.shape[2])
    for expert, (first, last) in enumerate(itertools.pairwise((0, *ends))):
        if first < last:
            torch.mm(rows[first:last], turned[expert], out=made[first:last])
    return made


def of_weights(out: Tensor, rows: Tensor, weights: Tensor, ends: list[int], *, transposed: bool) -> Tensor:
    """The gradient of the weights that made rows whose gradients are ``out`` of ``rows``."""
    made = torch.zeros_like(weights)
    for expert, (first, last) in enumerate(itertools.pairwise((0, *ends))):
        if first < last:
            left, right = (rows, out) if transposed else (out, rows)
            torch.mm(left[first:last].t(), right[first:last], out=made[expert])
    return made


def summed(rows: Tensor, order: Tensor, shape: torch.Size) -> Tensor:
    """Rows of the index' places ``order``, those of each token added up: [T, columns], of an index [T, K]."""
    tokens, each = shape
    placed = rows.new_zeros(tokens * each, rows.shape[1])
    placed[order] = rows
    return placed.view(tokens, each, rows.shape[1]).sum(1)


def spread(bias: Tensor, ends: Tensor, bounds: list[int]) -> Tensor:
    """Of each expert's bias a row for each of its rows. ``bounds``: ``ends`` as numbers."""
    return bias.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), 0, output_size=bounds[-1])


def bias_gradient(of_rows: Tensor, bounds: list[int]) -> Tensor:
    """The rows of each expert added up."""
    return torch.stack([of_rows[first:last].sum(0) for first, last in itertools.pairwise((0, *bounds))])


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
        gate: str, transposed: bool, start: int,
    ) -> Tensor:  # fmt: skip
        how = {"gate": gate, "transposed": transposed}
        result, *kept = torch.ops.autopar.experts_forward(x, index, weight, up, down, up_bias, **how, start=start)
        ctx.save_for_backward(x, weight, up, down, *kept)
        ctx.how, ctx.biased = how, up_bias is not None
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, up, down, bias = torch.ops.autopar.experts_backward(grad, *ctx.saved_tensors, **ctx.how)
        return x, None, weight, up, down, bias if ctx.biased else None, None, None, None


def _whole(*args: Any, **how: Any) -> Tensor:
    """As one operation of the graph of a trace, whose gradient is not asked for."""
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = torch.ops.autopar.experts(*args, **how)
    return result


def _differentiable(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, **how: Any
) -> Tensor:
    return experts(x, index, weight, up, down, up_bias, **how)


def _alone(*args: Any, **how: Any) -> Tensor:
    """Without a gradient."""
    result: Tensor = torch.ops.autopar.experts_forward(*args, **how)[0]
    return result


_library.impl("experts", _differentiable, "Autograd")
_library.impl("experts", _alone, "CompositeExplicitAutograd")
_library.impl("experts_forward", _forward, "CompositeExplicitAutograd")
_library.impl("experts_backward", _backward, "CompositeExplicitAutograd")


@torch.library.register_fake("autopar::experts", lib=_library)  # type: ignore[untyped-decorator]
def _experts_shape(x: Tensor, *args: Any, **how: Any) -> Tensor:
    return torch.empty_like(x)
