"""Collectives whose results are not needed at once: sent when their operand is there, waited for before the first use.

Lowering writes a conversion right before its first use. Where heavy work stands between the operand and that use, the
conversion becomes two nodes around it. The backward pass mirrors them: the gradient is sent where the wait stood, and
waited for where the value was sent, after the backward of the work between, which autograd runs first because it was
recorded later. The order in which collectives are sent follows from the graph alone, so it is the same on all ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, fx

from autopar.runtime.collectives import begin, returned
from autopar.runtime.moves import TwoWay

# A conversion's node in the graph that is being built, what it does, and among whom.
Sent: TypeAlias = "tuple[fx.Node, TwoWay, dist.ProcessGroup]"


def spread(graph: fx.Graph, sent: Sequence[Sent], heavy: AbstractSet[fx.Node]) -> None:
    """Split the conversions that have heavy work between their operand and their first use.

    Parameters are not sent ahead: gathered ones would be held longer than the plan counts.
    """
    for node, step, group in sent:
        order = {each: index for index, each in enumerate(graph.nodes)}
        operand = node.args[0]
        assert isinstance(operand, fx.Node)
        users = sorted(node.users, key=order.__getitem__)
        if operand.op == "placeholder" or not users:
            continue
        between = [each for each in order if order[operand] < order[each] < order[users[0]]]
        if heavy.isdisjoint(between):
            continue
        start, end = halves(step, group)
        after = operand
        while after.next.target is operator.getitem:  # never between a tuple and its members
            after = after.next
        with graph.inserting_after(after):
            ticket = graph.call_function(start, (operand,))
        with graph.inserting_before(users[0]):
            waited = graph.call_function(end, (ticket,))
        node.replace_all_uses_with(waited)
        graph.erase_node(node)


class Ticket:
    """A collective on its way, forward and then backward."""

    def __init__(self, step: TwoWay, group: dist.ProcessGroup) -> None:
        self.step, self.group = step, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.token: Tensor | None = None
        self.end: Callable[[], Tensor] | None = None

    def begin(self, x: Tensor, *, backward: bool) -> None:
        move = self.step.backward if backward else self.step.forward
        self.end = begin(x, self.group, self.rank, self.size, move, later=True)

    def value(self) -> Tensor:
        assert self.end is not None
        end, self.end = self.end, None
        return end()


class _Send(torch.autograd.Function):
    """The value travels in the ticket; the token only ties the two halves together in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ticket: Ticket) -> Tensor:
        ctx.ticket = ticket
        ticket.begin(x.detach(), backward=False)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        return ctx.ticket.value(), None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, ticket: Ticket) -> Tensor:
        ctx.ticket = ticket
        return returned(ticket.value())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        ctx.ticket.begin(gradients[0], backward=True)
        return gradients[0].new_zeros(()), None


def halves(step: TwoWay, group: dist.ProcessGroup) -> tuple[Callable[[Tensor], Ticket], Callable[[Ticket], Tensor]]:
    """A conversion as two functions: one sends and returns a ticket, one waits for its value."""

    def send(x: Tensor) -> Ticket:
        ticket = Ticket(step, group)
        if step.differentiable and x.requires_grad and torch.is_grad_enabled():
            ticket.token = _Send.apply(x, ticket)  # type: ignore[no-untyped-call]
        else:
            ticket.begin(x.detach(), backward=False)
        return ticket

    def receive(ticket: Ticket) -> Tensor:
        token, ticket.token = ticket.token, None
        if token is None:
            return ticket.value()
        result: Tensor = _Receive.apply(token, ticket)  # type: ignore[no-untyped-call]
        return result

    send.__name__ = f"send_{step.forward.kind}_{step.forward.axis}"
    receive.__name__ = f"receive_{step.forward.kind}_{step.forward.axis}"
    return send, receive
