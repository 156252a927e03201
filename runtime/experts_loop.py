"""Experts one after the other: any device and element type.

What only one expert needs lives as long as its turn, so that it stays in a cache and its memory is used again. Each
adds its rows to their tokens at the end of its turn, in an order that only how many they are decides: equal calls have
equal bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from autopar.runtime.experts_turns import faster_by_two, turns
from autopar.runtime.gates import Gated


def forward(
    x: Tensor, token: Tensor, share: Tensor, ends: Sequence[int], up: Tensor, down: Tensor, up_bias: Tensor | None,
    gate: Gated,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The result [T, H] and what the first projection gave [rows, c I], of each turn that has any.

    ``token`` [n], ``share`` [n, 1]: whose row each is, and with which weight. ``ends``: after which row each expert
    ends. ``up`` [E, H, c I] and ``down`` [E, I, H]: as rows are multiplied by them.
    """
    result, inners = _sums(x), []
    for turn in turns(ends, by_two=faster_by_two(x)):
        if not turn.most:
            continue
        tokens = turn.filled(token)
        inner = turn.product(x.index_select(0, tokens), up)
        if up_bias is not None:
            for expert, _, (its,) in turn.each(inner):
                its += up_bias[expert]
        for _, part, (rows,) in turn.each(turn.product(gate.forward(inner, tokens), down)):
            result.index_add_(0, token[part], rows.to(result.dtype).mul_(share[part]))
        inners.append(inner)
    return result.to(x.dtype), inners


def backward(
    grad: Tensor, x: Tensor, token: Tensor, share: Tensor, ends: Sequence[int], up: Tensor, down: Tensor,
    inners: Sequence[Tensor], gate: Gated, of_up: Tensor | None, of_down: Tensor | None, of_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of x and of ``share`` [n]; those of the parameters are written, where there is room for them."""
    of_x, of_share, inner = _sums(x), share.new_empty(len(share)), iter(inners)
    by_two = len(inners) < sum(first < last for first, last in itertools.pairwise((0, *ends)))
    for turn in turns(ends, by_two=by_two):
        if not turn.most:
            for each in (of_up, of_down, of_bias):
                if each is not None:
                    each[turn.experts[0]].zero_()
            continue
        tokens = turn.filled(token)
        given = grad.index_select(0, tokens)
        middle, inwards = gate.and_backward(next(inner), tokens)
        of_middle = turn.product(given, down.mT)
        for expert, part, (to_middle, its_middle, its) in turn.each(of_middle, middle, given):
            torch.sum(to_middle * its_middle, -1, dtype=share.dtype, out=of_share[part])
            to_middle.mul_(share[part])
            if of_down is not None:
                torch.mm(its_middle.T, its.mul_(share[part]), out=of_down[expert])
        of_inner = inwards(of_middle)
        for expert, part, (to_inner,) in turn.each(of_inner):
            if of_up is not None:
                torch.mm(x.index_select(0, token[part]).T, to_inner, out=of_up[expert])
            if of_bias is not None:
                torch.sum(to_inner, 0, out=of_bias[expert])
        for _, part, (rows,) in turn.each(turn.product(of_inner, up.mT)):
            of_x.index_add_(0, token[part], rows.to(of_x.dtype))
    return of_x.to(x.dtype), of_share


def _sums(x: Tensor) -> Tensor:
    """Zeros to add rows to, in float32 at least."""
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
