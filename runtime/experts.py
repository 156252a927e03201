"""Experts as one operation: each token goes through the few experts that were chosen for it.

    result[t] = sum over k of weight[t, k] · down[e] · gate(up[e] · x[t] + up_bias[e])    with e = index[t, k] - start

x [T, H] · index, weight [T, K] · up [E, c I, H], c = 2 for a gated one, else 1 · down [E, H, I] · up_bias [E, c I] ·
``transposed``: up [E, H, c I], down [E, I, H]. An index whose expert is not among the E that are here adds nothing.
``kept`` [T, I]: what of a token the gate leaves, times ``kept_factor``: dropout inside experts.

Rows of the tokens are put in order of their experts and multiplied expert by expert (``experts_loop.py``), or all at
once where torch can (``experts_fused.py``); a few tokens on a GPU meet all experts (``experts_dense.py``). Autograd
keeps the operands, the order, and what the first projection gave. It is one operation of what ``torch.export`` makes;
``torch.compile`` calls it between two graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autopar.ir.formulas import parse_gate
from autopar.runtime import experts_dense, experts_fused, experts_loop, pages, torch_private
from autopar.runtime.gates import Gated

_BEYOND = 2**30  # more than any number of experts

_library = torch.library.Library("autopar", "FRAGMENT")
_GIVEN = "Tensor x, Tensor index, Tensor weight, Tensor up, Tensor down, Tensor? up_bias, Tensor? kept=None"
_HOW = "str gate, bool transposed=False, float kept_factor=1.0, int start=0, bool complete=False"
_library.define(f"experts({_GIVEN}, *, {_HOW}) -> Tensor")
_library.define(f"experts_forward({_GIVEN}, *, {_HOW}) -> (Tensor, Tensor[], Tensor[])")
_library.define(
    "experts_backward(Tensor grad, Tensor x, Tensor weight, Tensor up, Tensor down, Tensor? kept, Tensor[] places, "
    "Tensor[] inner, *, str gate, bool transposed, float kept_factor, bool[] wants) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def experts(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None = None,
    kept: Tensor | None = None, *, gate: str, transposed: bool = False, kept_factor: float = 1.0, start: int = 0,
    complete: bool = False,
) -> Tensor:  # fmt: skip
    """The operation, differentiable in all but the index and what is kept.

    ``complete``: the expert of every index is here, so that nothing needs to be masked. A trace leaves it out: of the
    devices of a mesh it may hold no more.
    """
    # in torch 2.11 all that dynamo follows counts as exported
    if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
        how: dict[str, Any] = {"gate": gate, "transposed": transposed, "kept_factor": kept_factor, "start": start}
        return _whole(x, index, weight, up, down, up_bias, kept, **how)
    given = x, index, weight, up, down, up_bias, kept
    result: Tensor = _computed(*given, gate, transposed, kept_factor, start, complete)
    return result


# Its shapes are data: a compiled graph ends before it, and another goes on.
@torch.compiler.disable  # type: ignore[untyped-decorator]
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
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
    kept: Tensor | None = None, *, gate: str, transposed: bool = False, kept_factor: float = 1.0, start: int = 0,
    complete: bool = False,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Result, what is where, and what the first projection gave [rows, c I], in pieces.

    What is where: one tensor if every token met every expert, else ``experts_fused.Rows`` or the first two of it.
    """
    how, (first, second) = Gated(parse_gate(gate), kept, kept_factor), (up, down) if transposed else (up.mT, down.mT)
    if experts_dense.usable(x, weight.numel(), up, down):
        choice = experts_dense.chosen(index, start, up.shape[0])
        result, made = experts_dense.forward(x, weight, choice, first, second, up_bias, how)
        return result, [choice], made
    order, ends = places = in_order(index, start, up.shape[0], complete=complete)
    if experts_fused.usable(x, weight.numel(), up, down):
        rows = experts_fused.Rows.of(*places, each=index.shape[1], complete=complete)
        result, inner = experts_fused.forward(x, weight, rows, first, second, up_bias, how)
        return result, rows.places, [inner]
    bounds = ends.tolist()
    order = order[: bounds[-1]]
    token, share = _of_rows(order, weight)
    result, inners = experts_loop.forward(x, token, share, bounds, first, second, up_bias, how)
    return result, [order, ends], inners


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, up: Tensor, down: Tensor, kept: Tensor | None, places: list[Tensor],
    inner: list[Tensor], *, gate: str, transposed: bool, kept_factor: float, wants: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of x, weight, up, down and up_bias; ``wants``: which of the last three."""
    how, stored, turned = Gated(parse_gate(gate), kept, kept_factor), (up, down), (up.mT, down.mT)
    (first, second), back = (stored, turned) if transposed else (turned, stored)
    if len(places) == 1:
        return experts_dense.backward(
            grad, x, places[0], (first, second), inner, how, transposed=transposed, wants=wants
        )
    order, ends = places[:2]
    whole = len(places) > 2
    if whole and experts_fused.usable(x, weight.numel(), up, down):
        rows = experts_fused.Rows(weight.shape[1], *places)
        of_x, of_weight, *found = experts_fused.backward(
            grad, x, weight, rows, (first, second), back, inner[0], how, transposed=transposed, wants=wants
        )
    else:
        bounds = ends.tolist()
        if whole:  # made all at once, of parameters that lay elsewhere then
            counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
            order, inner = order[: bounds[-1]], list(inner[0][: bounds[-1]].split([n for n in counts if n]))
        token, share = _of_rows(order, weight)
        found = [
            pages.empty_like(each) if wanted else None
            for each, wanted in zip((up, down, up.new_empty(up.shape[0], first.shape[2])), wants, strict=True)
        ]
        into_up, into_down = (each if transposed or each is None else each.mT for each in found[:2])
        of_x, of_share = experts_loop.backward(
            grad, x, token, share, bounds, first, second, inner, how, into_up, into_down, found[2]
        )
        of_weight = weight.new_zeros(weight.numel()).index_copy_(0, order, of_share).view(weight.shape)
    of_up, of_down, of_bias = found
    return of_x, of_weight, of_up, of_down, of_bias


def _backward(grad: Tensor, *args: Any, **how: Any) -> tuple[Tensor, ...]:
    """The same, empty where there is none: an operator gives tensors."""
    return tuple(grad.new_empty(0) if each is None else each for each in _gradients(grad, *args, **how))


def _of_rows(order: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The token of each row, and its weight [n, 1]."""
    return order.div(weight.shape[1], rounding_mode="floor"), weight.reshape(-1).index_select(0, order).unsqueeze(-1)


def in_order(index: Tensor, start: int, count: int, *, complete: bool = False) -> tuple[Tensor, Tensor]:
    """Places in the flattened index by expert, those of one expert in order, the choices of other experts than the
    ``count`` from ``start`` on last; and after how many of them each expert ends. ``complete``: there are no others."""
    here = index.reshape(-1)
    here = here - start if start else here
    if not complete:  # below 0 becomes a large number: few operations, each of which is a kernel to start on a GPU
        here = here.remainder(_BEYOND).clamp_(max=count)
    known, order = torch.sort(here, stable=True)
    experts = torch.arange(count, device=index.device, dtype=known.dtype)
    return order, torch.searchsorted(known, experts, right=True, out_int32=True)


class _Experts(torch.autograd.Function):
    """Operators, for modes that look at them (``tape.py``); else without the dispatcher, a tenth of a small layer."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
        kept: Tensor | None, gate: str, transposed: bool, kept_factor: float, start: int,
        complete: bool,
    ) -> Tensor:  # fmt: skip
        how: dict[str, Any] = {"gate": gate, "transposed": transposed, "kept_factor": kept_factor}
        forward: Callable[..., Any] = _forward
        if torch_private.in_dispatch_mode():
            forward = torch.ops.autopar.experts_forward
        given = x, index, weight, up, down, up_bias, kept
        result, places, inner = forward(*given, **how, start=start, complete=complete)
        ctx.save_for_backward(x, weight, up, down, kept, *places, *inner)
        ctx.how, ctx.last = how, 5 + len(places)
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants = ctx.needs_input_grad[3:6]
        saved = ctx.saved_tensors
        backward: Callable[..., Any] = _gradients
        if torch_private.in_dispatch_mode() or torch.is_grad_enabled():
            backward = torch.ops.autopar.experts_backward
        places, inner = list(saved[5 : ctx.last]), list(saved[ctx.last :])
        x, weight, *found = backward(grad, *saved[:5], places, inner, **ctx.how, wants=wants)
        parameters = (each if wanted else None for each, wanted in zip(found, wants, strict=True))
        return x, None, weight, *parameters, *[None] * 6


def _whole(*args: Any, **how: Any) -> Tensor:
    """As one operation of the graph of a trace, whose gradient is not asked for."""
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = torch.ops.autopar.experts(*args, **how)
    return result


def _differentiable(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
    kept: Tensor | None = None, **how: Any,
) -> Tensor:  # fmt: skip
    return experts(x, index, weight, up, down, up_bias, kept, **how)


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
