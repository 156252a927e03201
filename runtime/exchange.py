"""Experts of which each device along an axis has some, and tokens of which it has some too.

Rows of the tokens go to the devices that have their experts (dispatch) and what these make of them goes back
(combine): two all_to_all of exactly the rows that there are, whose numbers are exchanged first, and two more for the
gradients (``rows_sent.py``). No row is dropped and none is padded, however the router shares them out; a device may get
all or none. For the experts there a row that came is a token with one choice (``experts.py``).

Device p of the group has the experts ``start + p * stride``, … Kept for the backward pass are the rows that came, since
the weights' gradients need them, in place of the tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.runtime import experts as kernel
from autopar.runtime.rows_sent import Way
from autopar.runtime.torch_private import group_named

_library = torch.library.Library("autopar", "FRAGMENT")
_library.define(
    "exchanged_forward(Tensor x, Tensor index, Tensor weight, Tensor up, Tensor down, Tensor? up_bias, Tensor? kept, "
    "*, str gate, bool transposed, float kept_factor, int start, int stride, str[] groups) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor[], Tensor[])"
)
_library.define(
    "exchanged_backward(Tensor grad, Tensor weight, Tensor up, Tensor down, Tensor rows, Tensor share, Tensor marks, "
    "Tensor order, Tensor numbers, Tensor[] places, Tensor[] inner, *, str gate, bool transposed, "
    "float kept_factor, bool[] wants, str[] groups) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def exchanged(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
    kept: Tensor | None = None, *,
    gate: str, transposed: bool, kept_factor: float = 1.0, start: int, stride: int, groups: tuple[str, ...],
) -> Tensor:  # fmt: skip
    """``experts`` of this device's tokens, with the experts of all devices of a group. Collective.

    ``groups``: the name of the group, or of the two through which rows go one after the other (``Way``).
    """
    given = x, index, weight, up, down, up_bias, kept
    result: Tensor = _computed(*given, gate, transposed, kept_factor, start, stride, groups)
    return result


@torch.compiler.disable  # type: ignore[untyped-decorator]  # its shapes are data: between two compiled graphs
def _computed(*args: Any) -> Tensor:
    result: Tensor = _Exchanged.apply(*args)  # type: ignore[no-untyped-call]
    return result


def _forward(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
    kept: Tensor | None, *,
    gate: str, transposed: bool, kept_factor: float, start: int, stride: int, groups: list[str],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Result; the rows that came, their weights and what is kept of them; which choices left, and how many to whom;
    what the experts keep."""
    order, sent = _by_device(index, start, stride, up.shape[0], groups)
    way, got = Way.of(sent, tuple(groups))
    order = order[: way.leave]
    rows = way.there(_of_tokens(x, order, weight))
    share = way.there(weight.reshape(-1, 1).index_select(0, order))
    marks = rows.new_empty(0, dtype=torch.bool) if kept is None else way.there(_of_tokens(kept, order, weight))
    own = torch.arange(up.shape[0], device=got.device).repeat(len(got))
    expert = own.repeat_interleave(got.flatten(), output_size=way.come).unsqueeze(1)
    made, places, inner = torch.ops.autopar.experts_forward(
        rows, expert, share, up, down, up_bias, None if kept is None else marks,
        gate=gate, transposed=transposed, kept_factor=kept_factor, complete=True,
    )  # fmt: skip
    result = _summed(way.back(made), order, weight)
    return result, rows, share, marks, order, way.numbers, places, inner


def _backward(
    grad: Tensor, weight: Tensor, up: Tensor, down: Tensor, rows: Tensor, share: Tensor, marks: Tensor, order: Tensor,
    numbers: Tensor, places: list[Tensor], inner: list[Tensor], *,
    gate: str, transposed: bool, kept_factor: float, wants: list[bool], groups: list[str],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, up, down and up_bias; ``wants``: which of the last three, the others are empty."""
    way = Way(tuple(groups), numbers)
    given = way.there(_of_tokens(grad, order, weight))
    of_rows, of_share, *parameters = torch.ops.autopar.experts_backward(
        given, rows, share, up, down, marks if marks.dim() > 1 else None, places, inner,
        gate=gate, transposed=transposed, kept_factor=kept_factor, wants=wants,
    )  # fmt: skip
    of_x = _summed(way.back(of_rows), order, weight)
    of_weight = weight.new_zeros(weight.numel()).index_copy_(0, order, way.back(of_share.flatten()))
    return of_x, of_weight.view(weight.shape), *parameters


def _by_device(index: Tensor, start: int, stride: int, count: int, groups: list[str]) -> tuple[Tensor, Tensor]:
    """Places in the flattened index by device and expert, those of choices that none has last; and how many there are
    of each of a device's ``count`` experts: [devices, count]."""
    devices = 1
    for group in groups:
        devices *= dist.get_world_size(group_named(group))
    here = index.reshape(-1) - start
    device, expert = here.div(stride, rounding_mode="floor"), here.remainder(stride)
    known = (here >= 0) & (device < devices) & (expert < count)
    order, ends = kernel.in_order(torch.where(known, device * count + expert, -1), 0, devices * count)
    sent = ends.long().diff(prepend=ends.new_zeros(1, dtype=torch.int64)).view(devices, count)
    return order, sent


def _of_tokens(tokens: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """Of each choice its token."""
    return tokens.index_select(0, order.div(weight.shape[1], rounding_mode="floor"))


def _summed(rows: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """[n, H], of the choices ``order``: those of each token added up, [T, H]. Others count as 0."""
    placed = rows.new_zeros(weight.numel(), rows.shape[1]).index_copy_(0, order, rows)
    return placed.view(*weight.shape, rows.shape[1]).sum(1)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
        kept: Tensor | None, gate: str, transposed: bool, kept_factor: float, start: int, stride: int,
        groups: tuple[str, ...],
    ) -> Tensor:  # fmt: skip
        ctx.how = {"gate": gate, "transposed": transposed, "kept_factor": kept_factor, "groups": groups}
        result, *came, places, inner = torch.ops.autopar.exchanged_forward(
            x, index, weight, up, down, up_bias, kept, start=start, stride=stride, **ctx.how
        )
        ctx.save_for_backward(weight, up, down, *came, *places, *inner)
        ctx.last = 8 + len(places)
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants, saved = ctx.needs_input_grad[3:6], ctx.saved_tensors
        x, weight, *found = torch.ops.autopar.exchanged_backward(
            grad, *saved[:8], saved[8 : ctx.last], saved[ctx.last :], **ctx.how, wants=wants
        )
        parameters = (each if wanted else None for each, wanted in zip(found, wants, strict=True))
        return x, None, weight, *parameters, *[None] * 7


_library.impl("exchanged_forward", _forward, "CompositeExplicitAutograd")
_library.impl("exchanged_backward", _backward, "CompositeExplicitAutograd")
