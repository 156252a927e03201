"""Experts one after the other: any device and element type.

What only one expert needs lives as long as its turn, so that it stays in a cache and its memory is used again. Each
adds its rows to their tokens at the end of its turn, in order of the experts: equal calls have equal bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from autopar.runtime.gates import Gated


def forward(
    x: Tensor, token: Tensor, share: Tensor, ends: Sequence[int], up: Tensor, down: Tensor, up_bias: Tensor | None,
    gate: Gated,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The result [T, H] and what the first projection gave [rows, c I], of each expert that has any.

    ``token`` [n], ``share`` [n, 1]: whose row each is, and with which weight. ``ends``: after which row each expert
    ends. ``up`` [E, H, c I] and ``down`` [E, I, H]: as rows are multiplied by them.
    """
    result, inners = _sums(x), []
    for expert, part in _turns(ends):
        inner = x.index_select(0, token[part]) @ up[expert]
        if up_bias is not None:
            inner += up_bias[expert]
        rows = gate.forward(inner, token[part]) @ down[expert]
        result.index_add_(0, token[part], rows.to(result.dtype).mul_(share[part]))
        inners.append(inner)
    return result.to(x.dtype), inners


def backward(
    grad: Tensor, x: Tensor, token: Tensor, share: Tensor, ends: Sequence[int], up: Tensor, down: Tensor,
    inners: Sequence[Tensor], gate: Gated, of_up: Tensor | None, of_down: Tensor | None, of_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of x and of ``share`` [n]; those of the parameters are written, where there is room for them."""
    of_x, of_share, inner = _sums(x), share.new_empty(len(share)), iter(inners)
    for expert, part in _turns(ends, empty=True):
        if part.start == part.stop:
            for each in (of_up, of_down, of_bias):
                if each is not None:
                    each[expert].zero_()
            continue
        given = grad.index_select(0, token[part])
        middle, inwards = gate.and_backward(next(inner), token[part])
        of_middle = given @ down[expert].T
        torch.sum(of_middle * middle, -1, dtype=share.dtype, out=of_share[part])
        of_inner = inwards(of_middle.mul_(share[part]))
        if of_down is not None:
            torch.mm(middle.T, given.mul_(share[part]), out=of_down[expert])
        if of_up is not None:
            torch.mm(x.index_select(0, token[part]).T, of_inner, out=of_up[expert])
        if of_bias is not None:
            torch.sum(of_inner, 0, out=of_bias[expert])
        of_x.index_add_(0, token[part], (of_inner @ up[expert].T).to(of_x.dtype))
    return of_x.to(x.dtype), of_share


def _sums(x: Tensor) -> Tensor:
    """Zeros to add rows to, in float32 at least."""
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))


def _turns(ends: Sequence[int], *, empty: bool = False) -> Iterator[tuple[int, slice]]:
    """Each expert and its rows; those without any if ``empty``."""
    for expert, (first, last) in enumerate(itertools.pairwise((0, *ends))):
        if empty or first < last:
            yield expert, slice(first, last)
