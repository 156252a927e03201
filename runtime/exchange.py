"""Experts of which each device along an axis has some, and tokens of which it has some too.

Rows of the tokens go to the devices that have their experts (dispatch) and what these make of them goes back
(combine): two all_to_all of exactly the rows that there are, whose numbers are exchanged first, and two more for the
gradients. No row is dropped and none is padded, however the router shares them out; a device may get all or none.

Device p of the group has the experts ``start + p * stride``, … Kept for the backward pass are the rows that came, since
the weights' gradients need them, in place of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autopar.ir.gates import Gate
from autopar.runtime.expert_rows import bias_gradient, of_each, of_weights, spread, summed
from autopar.runtime.gates import gate_backward, gated
from autopar.runtime.torch_private import group_named

_library = torch.library.Library("autopar", "FRAGMENT")
_library.define(
    "exchanged_forward(Tensor x, Tensor index, Tensor weight, Tensor up, Tensor down, Tensor? up_bias, *, str gate, "
    "bool transposed, int start, int stride, str group) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "exchanged_backward(Tensor grad, Tensor weight, Tensor up, Tensor down, Tensor inner, Tensor rows, Tensor share, "
    "Tensor order, Tensor ends, Tensor sorting, Tensor splits, *, str gate, bool transposed, str group) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def exchanged(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, *,
    gate: str, transposed: bool, start: int, stride: int, group: str,
) -> Tensor:  # fmt: skip
    """``experts`` of this device's tokens, with the experts of all devices of ``group``. Collective."""
    result: Tensor = _computed(x, index, weight, up, down, up_bias, gate, transposed, start, stride, group)
    return result


@torch.compiler.disable  # type: ignore[untyped-decorator]  # its shapes are data: between two compiled graphs
def _computed(*args: Any) -> Tensor:
    result: Tensor = _Exchanged.apply(*args)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True, eq=False)
class Route:
    """The way of rows: ``order`` are their places in the index here, by device and expert; ``splits`` [2, devices]
    how many go to each device and come from it; ``sorting`` brings those that came in order of their experts, which
    end at ``ends``."""

    order: Tensor
    ends: Tensor
    sorting: Tensor
    splits: Tensor
    group: str

    @classmethod
    def of(cls, index: Tensor, *, start: int, stride: int, count: int, group: str) -> Route:
        """To ``count`` experts on each device."""
        peers = group_named(group)
        size = dist.get_world_size(peers)
        here = index.reshape(-1) - start
        device, expert = here.div(stride, rounding_mode="floor"), here.remainder(stride)
        known = (here >= 0) & (device < size) & (expert < count)
        key, order = torch.sort(torch.where(known, device * count + expert, size * count), stable=True)
        edges = torch.searchsorted(key, torch.arange(size * count, device=key.device, dtype=key.dtype), right=True)
        sent = edges.diff(prepend=edges.new_zeros(1))
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=peers)
        splits = torch.stack((sent, got)).view(2, size, count).sum(2).cpu()
        leave, come = splits.sum(1).tolist()
        experts = torch.arange(count, device=got.device).repeat(size).repeat_interleave(got, output_size=come)
        ends = got.view(size, count).sum(0).cumsum(0)
        return cls(order[:leave], ends, torch.sort(experts, stable=True).indices, splits, group)

    def there(self, values: Tensor) -> Tensor:
        """Of each row that leaves its value, in ``order`` → of each that came, by expert."""
        leave, come = self.splits.tolist()
        got = values.new_empty(sum(come), *values.shape[1:])
        dist.all_to_all_single(got, values.contiguous(), come, leave, group=group_named(self.group))
        return got[self.sorting]

    def back(self, values: Tensor) -> Tensor:
        """Inverse of ``there``."""
        leave, come = self.splits.tolist()
        placed = torch.empty_like(values)
        placed[self.sorting] = values
        got = values.new_empty(sum(leave), *values.shape[1:])
        dist.all_to_all_single(got, placed, leave, come, group=group_named(self.group))
        return got


def _forward(
    x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, *,
    gate: str, transposed: bool, start: int, stride: int, group: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Result; what the first projection gave, the rows that came and their weights; the route."""
    route = Route.of(index, start=start, stride=stride, count=up.shape[0], group=group)
    rows = route.there(x[route.order // index.shape[1]])
    share = route.there(weight.reshape(-1)[route.order])
    bounds = route.ends.tolist()
    inner = of_each(rows, up, bounds, transposed=transposed)
    if up_bias is not None:
        inner += spread(up_bias, route.ends, bounds)
    made = of_each(gated(Gate.parse(gate), inner), down, bounds, transposed=transposed)
    result = summed(route.back((made * share.unsqueeze(-1)).to(x.dtype)), route.order, index.shape)
    return result, inner, rows, share, route.order, route.ends, route.sorting, route.splits


def _backward(
    grad: Tensor, weight: Tensor, up: Tensor, down: Tensor, inner: Tensor, rows: Tensor, share: Tensor, order: Tensor,
    ends: Tensor, sorting: Tensor, splits: Tensor, *, gate: str, transposed: bool, group: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, up, down and up_bias."""
    route, how, bounds = Route(order, ends, sorting, splits, group), Gate.parse(gate), ends.tolist()
    given = route.there(grad[order // weight.shape[1]])
    middle, scale = gated(how, inner), share.unsqueeze(-1)
    of_middle = of_each(given, down, bounds, transposed=not transposed)
    of_weight = torch.zeros_like(weight).reshape(-1)
    of_weight[order] = route.back((of_middle * middle).sum(-1, dtype=weight.dtype))
    of_inner = gate_backward(how, inner, (of_middle * scale).to(inner.dtype))
    of_x = summed(route.back(of_each(of_inner, up, bounds, transposed=not transposed)), order, weight.shape)
    of_down = of_weights((given * scale).to(given.dtype), middle, down, bounds, transposed=transposed)
    of_up = of_weights(of_inner, rows, up, bounds, transposed=transposed)
    return of_x.to(grad.dtype), of_weight.view_as(weight), of_up, of_down, bias_gradient(of_inner, bounds)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None,
        gate: str, transposed: bool, start: int, stride: int, group: str,
    ) -> Tensor:  # fmt: skip
        ctx.how = {"gate": gate, "transposed": transposed, "group": group}
        result, *kept = torch.ops.autopar.exchanged_forward(
            x, index, weight, up, down, up_bias, start=start, stride=stride, **ctx.how
        )
        ctx.save_for_backward(weight, up, down, *kept)
        ctx.biased = up_bias is not None
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, up, down, bias = torch.ops.autopar.exchanged_backward(grad, *ctx.saved_tensors, **ctx.how)
        return x, None, weight, up, down, bias if ctx.biased else None, None, None, None, None, None


_library.impl("exchanged_forward", _forward, "CompositeExplicitAutograd")
_library.impl("exchanged_backward", _backward, "CompositeExplicitAutograd")
