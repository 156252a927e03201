"""What a process does with tokens and experts of its own, and operands of all of them."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autopar.runtime.exchange import exchanged
from tests.moe.plain import Sizes, operands

RANKS, TOKENS, EXPERTS = 2, 6, 4
# By what it is: experts chosen by each token of each rank.
ROUTINGS: dict[str, Any] = {
    "even": None,
    "all to one expert": torch.zeros(RANKS * TOKENS, 2, dtype=torch.int64),
    "one device has none": torch.tensor([[0, 1]] * RANKS * TOKENS),
    "everybody sends": torch.tensor([[3, 2]] * TOKENS + [[1, 0]] * TOKENS),
    "some to no expert": torch.tensor([[-1, 4], [9, 2], [4, 4], [1, -3], [3, 0], [2, 2]] * RANKS),
    "nobody to any": torch.full((RANKS * TOKENS, 2), 7),
}


def whole(routing: str, *, transposed: bool = False) -> list[Tensor]:
    """Operands of all tokens and all experts."""
    sizes = Sizes(tokens=RANKS * TOKENS, experts=EXPERTS)
    made = operands(sizes, transposed=transposed, biased=True, index=ROUTINGS[routing])
    return [x for x in made if x is not None]


def run(routing: str, transposed: bool, again: bool) -> list[Tensor]:
    """This rank's result, and gradients of its tokens, their weights, and its experts."""
    rank, each, own = dist.get_rank(), TOKENS, EXPERTS // RANKS
    full = [x.detach() for x in whole(routing, transposed=transposed)]
    mine = [x[rank * each : (rank + 1) * each] for x in full[:3]] + [x[rank * own : (rank + 1) * own] for x in full[3:]]
    mine = [x.clone().requires_grad_(x.is_floating_point()) for x in mine]
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    call = functools.partial(exchanged, gate="silu-glu", transposed=transposed, start=0, stride=own, group=name)
    found = checkpoint(call, *mine, use_reentrant=False) if again else call(*mine)
    leaves = [x for x in mine if x.requires_grad]
    gradients = torch.autograd.grad(found, leaves, seed(found.shape[1])[rank * each : (rank + 1) * each])
    return [found.detach(), *gradients]


def seed(hidden: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(RANKS * TOKENS, hidden, generator=generator, dtype=torch.float64)
