"""Functions of autograd as users write them: those that autopar traces, and those that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


class Swish(Function):
    """Keeps its operand alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        made: Tensor = grad * (s * (1 + x * (1 - s)))
        return made


class Reversed(Function):
    """Another gradient than the derivative, and a number beside the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.neg() * ctx.by, None


class StraightThrough(Function):
    """Rounds forward; backward lets through what was in range, by a mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.abs() <= 1)
        return torch.round(4 * x) / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inside,) = ctx.saved_tensors
        return grad.masked_fill(~inside, 0.0)


class Rectified(Function):
    """As torch's tutorial has it: writes zeros into a copy of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x < 0, torch.zeros_like(grad), grad.clone())


class Product(Function):
    """Two operands, and the newer way to say what is kept."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, 3 * grad * x if ctx.needs_input_grad[1] else None


class Rows(Function):
    """A result that depends on whole rows, a gradient that does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / 2


class Copied(Function):
    """What is done to its gradient is for others to say."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()


class Clipped(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-1e6, 1e6)


class Averaged(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.mean(0)


class Shifted(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        made: Tensor = grad + ctx.saved_tensors[0]
        return made


class Turned(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.flip(0)


class Halved(Function):
    """On small tensors nothing is left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x[:, :6].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clone()


class Both(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.clone(), 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] + 2 * grads[1]


class Scaled(Function):
    """Of a row of numbers: its gradient is a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Tensor) -> Tensor:
        ctx.save_for_backward(x, by)
        return x * by

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, by = ctx.saved_tensors
        return grad * by, (grad * x).sum(0)


class Filled(Copied):
    """What fills is zero for some numbers only."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x < 0, torch.relu(x).sum() * 0, grad)


class Written(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


class Quadratic(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * grad


class Floored(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.div(grad.flip(0), 2, rounding_mode="floor")


class Truncated(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.flip(0).long().to(grad.dtype)


class Decided(Copied):
    """By the gradient's numbers."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.flip(0) if bool(grad.sum() > 0) else grad


class Affine(Function):
    """What many write by hand: products for both operands, a sum for the bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x), grad.sum(0)


class Attended(Function):
    """Batches of products, and views of them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, heads: int) -> Tensor:
        ctx.heads = heads
        q, k = (x.view(x.shape[0], heads, -1).transpose(0, 1) for x in (q, k))
        ctx.save_for_backward(q, k)
        return q.bmm(k.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k = ctx.saved_tensors
        of_q, of_k = grad.bmm(k), grad.transpose(1, 2).bmm(q)
        return *(x.permute(1, 0, 2).reshape(x.shape[1], -1) for x in (of_q, of_k)), None


class Chosen(Function):
    """The weight of a choice, with the gradient of sparse mixers (Liu et al. 2023): of all scores, for one result."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, multiplier: Tensor, index: Tensor, gates: Tensor) -> Tensor:
        ctx.save_for_backward(multiplier, index, gates)
        return multiplier * 0.7

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        multiplier, index, gates = ctx.saved_tensors
        grad = grad * multiplier
        of_scores = gates * grad.mul(-1)
        of_scores.scatter_add_(dim=-1, index=index, src=grad)
        return of_scores, None, None, None


class Picked(Function):
    """Broadcast, masked, looked up and divided."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(x, index)
        return x.gather(1, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, index = ctx.saved_tensors
        grad = torch.where(grad.new_ones(grad.shape) > 0, grad, 0.0).masked_fill(index == 3, 0)
        made = torch.zeros_like(x).scatter_add(1, index, grad.float().to(x.dtype))
        spread = grad.sum(1, keepdim=True).expand_as(x) - grad.mean().unsqueeze(0)
        return (made - 2 * spread / x.shape[0]).squeeze(), None


class Called(nn.Module):
    """A perceptron with ``call`` between, on what it makes and on a parameter of its width."""

    def __init__(self, call: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.row = nn.Linear(8, 12), nn.Linear(12, 8), nn.Parameter(torch.randn(12))
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down(self.call(self.up(x), self.row))
        return (made - x).square().mean()


def without_gradient(x: Tensor, row: Tensor) -> Tensor:
    """What it would do with a gradient is no matter."""
    with torch.no_grad():
        scale: Tensor = Scaled.apply(x, row)
    return x * scale


def mixed(x: Tensor, row: Tensor) -> Tensor:
    gates = x.softmax(-1)
    index = x.argmax(-1, keepdim=True)
    made: Tensor = Chosen.apply(x, gates.gather(-1, index), index, gates)
    return x * made * row


def picked(x: Tensor, row: Tensor) -> Tensor:
    index = torch.arange(12, device=x.device).mul(5).remainder(12).expand(x.shape)
    made: Tensor = Picked.apply(x, index)
    return made * row


def attended(x: Tensor, row: Tensor) -> Tensor:
    made: Tensor = Attended.apply(x, x.sin(), 3)
    return x * made.sum((0, 2)).unsqueeze(-1) * row


TRACED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "swish": lambda x, row: Swish.apply(x),
    "twice": lambda x, row: Swish.apply(Swish.apply(x) * row),
    "reversed": lambda x, row: Reversed.apply(x, 0.3) + row,
    "straight through": lambda x, row: StraightThrough.apply(x) * StraightThrough.apply(row),
    "rectified": lambda x, row: Rectified.apply(x),
    "product": lambda x, row: Product.apply(x, x.sin()),
    "rows": lambda x, row: Rows.apply(x),
    "no gradient": without_gradient,
    "averaged": lambda x, row: Averaged.apply(x) * row,
    "turned": lambda x, row: Turned.apply(x) * row,
    "scaled": lambda x, row: Scaled.apply(x, row),
    "affine": lambda x, row: Affine.apply(x, torch.outer(row, row.cos()), row),
    "attended": attended,
    "chosen": mixed,
    "picked": picked,
    "reentrant": lambda x, row: checkpoint(lambda h: torch.tanh(h) * row, x, use_reentrant=True),
}
REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "Clipped": (lambda x, row: Clipped.apply(x), "clamp"),
    "Shifted": (lambda x, row: Shifted.apply(x), "add"),
    "Quadratic": (lambda x, row: Quadratic.apply(x), "mul"),
    "Floored": (lambda x, row: Floored.apply(x), "div"),
    "Truncated": (lambda x, row: Truncated.apply(x), "_to_copy"),
    "Decided": (lambda x, row: Decided.apply(x), "cannot be followed"),
    "Halved": (lambda x, row: torch.cat([Halved.apply(x), x[:, 6:]], 1), "differ in shape"),
    "Both": (lambda x, row: sum(Both.apply(x)), "its result is a tuple"),
    "Filled": (lambda x, row: Filled.apply(x), "where"),
    "Written": (lambda x, row: Written.apply(x.clone()), "it writes to what it is given"),
}
