"""Where gradients end: under no_grad, at detach, at writes; each as eager torch has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.trace.compare import assert_same

INPUTS = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double(),)


class Net(nn.Module):
    kept: Tensor

    def __init__(self, body: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        self.register_buffer("kept", torch.ones(4).double())
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)

    def one(self, x: Tensor) -> Tensor:
        made: Tensor = self.first(x)
        return made

    def two(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(x)
        return made


# Of a tensor under no_grad: the tensor itself, a view of it, a copy. Only the first keeps its gradient.
GIVEN: dict[str, Callable[[Tensor], Tensor]] = {
    "to": lambda h: h.to(torch.float64), "double": lambda h: h.double(), "type_as": lambda h: h.type_as(h),
    "contiguous": lambda h: h.contiguous(), "flatten": lambda h: h.flatten(0, 0), "positive": lambda h: +h,
    "resolve_conj": lambda h: h.resolve_conj(), "cpu": lambda h: h.cpu(),
    "no dropout": lambda h: F.dropout(h, 0.0, training=True), "inference": lambda h: F.dropout(h, training=False),
    "view": lambda h: h.view(h.shape), "reshape": lambda h: h.reshape(3, 4), "expand": lambda h: h.expand(3, 4),
    "slice": lambda h: h[:], "squeeze": lambda h: h.squeeze(), "transpose": lambda h: h.mT.mT,
    "clone": lambda h: h.clone(), "cat": lambda h: torch.cat([h]), "repeat": lambda h: h.repeat(1, 1),
}  # fmt: skip


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_what_an_operation_under_no_grad_gives(given: Callable[[Tensor], Tensor]) -> None:
    def body(net: Net, x: Tensor) -> Tensor:
        hidden = net.one(x)
        with torch.no_grad():
            made = given(hidden)
            scale = (made * made).mean()
        return (net.two(hidden) * scale).sum() + hidden.sum() + made.sum()

    assert_same(Net(body), INPUTS)


def in_turn(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = net.one(x)
        with torch.enable_grad():
            made = net.two(hidden)
        twice = made * 2
    return (hidden + made + twice).sum()


def by_switch(net: Net, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    hidden = net.one(x)
    torch.set_grad_enabled(True)
    return (net.two(hidden) * hidden).sum()


def weights(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        weight, norm, same = net.first.weight, net.first.weight.norm(), net.first.weight.to(torch.float64)
    total: Tensor = (F.linear(x, weight) / norm + F.linear(x, same)).square().sum() + net.two(x).sum()
    return total


def straight_through(net: Net, x: Tensor) -> Tensor:
    hidden = net.one(x)
    return (hidden + (hidden.round() - hidden).detach()).square().sum() + net.two(x).sum()


def a_leaf_within(net: Net, x: Tensor) -> Tensor:
    hidden = net.one(x)
    return (net.two(hidden.detach().requires_grad_()) + hidden).square().sum()


def checkpointed(net: Net, x: Tensor) -> Tensor:
    hidden = checkpoint(lambda y: net.one(y).tanh(), x, use_reentrant=False)
    return net.two(hidden).sum()


def average(net: Net, x: Tensor) -> Tensor:
    hidden = net.one(x)
    with torch.no_grad():
        net.kept.lerp_(hidden.mean(0), 0.1)
        before = net.kept * 2
        net.kept.mul_(3)
    return (hidden * before + net.two(x) * net.kept).sum()


def filled(net: Net, x: Tensor) -> Tensor:
    """A tensor of the sizes of another has no gradient of it, and what is written to it here has none."""
    hidden = net.one(x)
    with torch.no_grad():
        made = torch.empty_like(hidden)
        made[:, :2] = hidden[:, :2]
        made[:, 2:] = net.two(x)[:, 2:]
        made.mul_(hidden)
    return (made * hidden * net.two(x)).sum()


def filled_from_outside(net: Net, x: Tensor) -> Tensor:
    hidden = net.one(x)
    made = torch.zeros_like(hidden)
    with torch.no_grad():
        made.copy_(hidden)
        made.add_(1)
    return (made * hidden * net.two(x)).sum()


def through_a_view(net: Net, x: Tensor) -> Tensor:
    hidden, made = net.one(x), torch.zeros(3, 4, dtype=x.dtype)
    row = made[0]
    with torch.no_grad():
        row.add_(hidden[0])
        twice = made * 2
    return (made * hidden + twice * net.two(x)).sum()


def written_with_gradients(net: Net, x: Tensor) -> Tensor:
    hidden = net.one(x)
    made = hidden.new_zeros(3, 4)
    made[0] = hidden[0]
    made[1].copy_(net.two(x)[1])
    with torch.no_grad():
        mask = made > 0
    return (made * mask * hidden).sum()


BODIES = (
    in_turn, by_switch, weights, straight_through, a_leaf_within, checkpointed, average, filled, filled_from_outside,
    through_a_view, written_with_gradients,
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=[body.__name__ for body in BODIES])
def test_gradients_end_where_they_do_in_eager_torch(body: Callable[[Net, Tensor], Tensor]) -> None:
    assert_same(Net(body), INPUTS)
