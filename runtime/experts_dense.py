"""Every token through every expert, in one batch of products, and nothing of those that it did not choose.

For so few tokens on a GPU that bringing the experts' matrices takes longer than multiplying: to put rows in order of
their experts, and tokens back, is then what takes time, two dozen kernels to start. Nothing is read back from the GPU.
What was not chosen becomes 0 before the gate, and its gradient behind it, so that nothing of it can overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autopar.runtime.gates import Gated

# An H200 multiplies bf16 by about 160 tokens in the time in which it brings a matrix (measured: 667 TFLOP/s, 4.2 TB/s).
_MOST_TOKENS = 128
# For a number of a token: what every expert makes of it is kept for the backward pass, beside the experts themselves.
_LEAST_WIDTH = 16


def usable(x: Tensor, choices: int, up: Tensor, down: Tensor) -> bool:
    """Whether this is the faster way: of fewer choices than experts, some would be brought for nothing."""
    few = x.shape[0] <= min(_MOST_TOKENS, x.shape[1] // _LEAST_WIDTH) and choices >= up.shape[0]
    return _on_gpu(x) and few and x.dtype == up.dtype == down.dtype


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def chosen(index: Tensor, start: int, experts: int) -> Tensor:
    """[T, K] -> bool [T, K, E]: whether a choice is the expert. It is none of those that are elsewhere."""
    here = torch.arange(start, start + experts, device=index.device, dtype=index.dtype)
    return index.unsqueeze(-1) == here


def forward(
    x: Tensor, weight: Tensor, choice: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, gate: Gated
) -> tuple[Tensor, list[Tensor]]:
    """The result [T, H]; and what the first projection gave [E, T, c I], with which weight a token has an expert
    [E, T, 1], and whether it has not chosen it.

    ``weight`` [T, K], ``choice``: what ``chosen`` gives, ``up`` [E, H, c I] and ``down`` [E, I, H].
    """
    of_each = x.expand(len(up), *x.shape)
    if up_bias is None:
        inner = torch.bmm(of_each, up)
    else:
        inner = torch.baddbmm(up_bias.to(x.dtype).unsqueeze(1), of_each, up)
    others = choice.any(1).logical_not_().T.unsqueeze(-1)
    inner.masked_fill_(others, 0)
    middle = gate.forward(inner, None)
    share = (choice * weight.unsqueeze(-1)).sum(1).T.unsqueeze(-1)
    return torch.bmm(middle.mul_(share), down).sum(0), [inner, share, others]


def backward(
    grad: Tensor, x: Tensor, choice: Tensor, matrices: tuple[Tensor, Tensor], made: Sequence[Tensor],
    gate: Gated, *, transposed: bool, wants: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of x, weight, up, down and up_bias as they are stored; ``wants``: which of the last three.

    ``made``: by ``forward``. ``matrices``: up and down as it has them, and as they are stored if ``transposed``.
    """
    (up, down), (inner, share, others) = matrices, made
    tokens, given = (each.expand(len(up), *each.shape) for each in (x, grad))
    middle, inwards = gate.and_backward(inner, None)
    of_middle = torch.bmm(given, down.mT)
    of_share = (of_middle * middle).sum(-1, dtype=share.dtype)
    of_weight = torch.where(choice, of_share.T.unsqueeze(1), 0).sum(-1)
    of_inner = inwards(of_middle.mul_(share)).masked_fill_(others, 0)
    pairs = (tokens, of_inner), (middle.mul_(share), given)
    of_up, of_down = (
        (torch.bmm(left.mT, right) if transposed else torch.bmm(right.mT, left)) if wanted else None
        for wanted, (left, right) in zip(wants[:2], pairs, strict=True)
    )
    of_bias = of_inner.sum(1) if wants[2] else None
    return torch.bmm(of_inner, up.mT).sum(0), of_weight, of_up, of_down, of_bias
