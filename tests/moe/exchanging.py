"""What a process does with tokens and experts of its own, and operands of all of them."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autopar.runtime.exchange import exchanged
from tests.moe.plain import Sizes, operands

RANKS, EXPERTS, NEIGHBOURS = 4, 8, 2
TOKENS = (6, 3, 0, 7)  # of each rank: one has none
ALL = sum(TOKENS)


def _random() -> Tensor:
    """Choices with repetitions, twice as many of them of the first experts, and some of no expert."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(-1, EXPERTS + 1, (ALL, 3), generator=generator) // torch.tensor([1, 2, 3])


# By what it is: experts chosen by each token of all ranks, None: distinct ones at random.
ROUTINGS: dict[str, Any] = {
    "even": None,
    "all to one expert": torch.zeros(ALL, 2, dtype=torch.int64),
    "to one device of the other node": torch.tensor([[6, 7]] * ALL),
    "every rank to another": torch.tensor([[3, 2]] * 6 + [[7, 6]] * 3 + [[0, 5]] * 7),
    "skewed, some to no expert": _random(),
    "nobody to any": torch.full((ALL, 2), EXPERTS + 3),
}


def whole(routing: str, dtype: torch.dtype = torch.float64, *, transposed: bool = False) -> list[Tensor]:
    """Operands of all tokens and all experts; with what is kept where weights are transposed."""
    index = ROUTINGS[routing]
    sizes = Sizes(tokens=ALL, experts=EXPERTS, hidden=8, inner=8)
    made = operands(sizes, transposed=transposed, biased=True, index=index, marked=transposed)
    if index is not None:
        made[2] = torch.randn(index.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return [x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x for x in made if x is not None]


@functools.cache
def ways() -> dict[str, tuple[str, ...]]:
    """Names of the groups in one step and in two, of 2 nodes with 2 ranks each."""
    rank, every = dist.get_rank(), range(RANKS)
    near = [each for each in every if each // NEIGHBOURS == rank // NEIGHBOURS]
    far = [each for each in every if each % NEIGHBOURS == rank % NEIGHBOURS]
    halves = [dist.new_group(ranks, use_local_synchronization=True).group_name for ranks in (near, far)]
    return {"flat": (dist.group.WORLD.group_name,), "in two steps": tuple(halves)}  # type: ignore[union-attr]


def run(routing: str, dtype: torch.dtype, transposed: bool, again: bool) -> dict[str, list[Tensor]]:
    """By way of exchange: this rank's result, and gradients of its tokens, their weights, and its experts."""
    rank, own = dist.get_rank(), EXPERTS // RANKS
    full = [x.detach() for x in whole(routing, dtype, transposed=transposed)]
    mine = [x.split(own if 2 < at < 6 else TOKENS)[rank] for at, x in enumerate(full)]
    found = {}
    for way, groups in ways().items():
        leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in mine]
        how: dict[str, Any] = {"gate": "silu-glu", "transposed": transposed, "kept_factor": 1.25 if transposed else 1.0}
        call = functools.partial(exchanged, **how, start=0, stride=own, groups=groups)
        made = checkpoint(call, *leaves, use_reentrant=False) if again else call(*leaves)
        wanted = [x for x in leaves if x.requires_grad]
        found[way] = [made.detach(), *torch.autograd.grad(made, wanted, seed(made).split(TOKENS)[rank])]
    return found


def over_two_axes(routing: str) -> tuple[Tensor, int]:
    """On 2 x 2 ranks whose experts are split over both axes, whose tokens over the first: this rank's part of the sum
    for its tokens, and the numbers that it is given to send there and back."""
    first, second = divmod(dist.get_rank(), 2)
    stride, own = EXPERTS // 2, EXPERTS // 4
    begin = first * stride + second * own
    group = dist.new_group([second, 2 + second], use_local_synchronization=True).group_name
    full = [x.detach() for x in whole(routing)]
    halves = sum(TOKENS[:2]), sum(TOKENS[2:])
    mine = [x[begin : begin + own] if 2 < at < 6 else x.split(halves)[first] for at, x in enumerate(full)]
    how: dict[str, Any] = {"start": second * own, "stride": stride, "groups": (group,)}
    with mock.patch.object(dist, "all_to_all_single", wraps=dist.all_to_all_single) as sends:
        made = exchanged(*mine, gate="silu-glu", transposed=False, **how)
    given = [call.args[1] for call in sends.call_args_list]
    return made, sum(x.numel() for x in given if x.shape[-1] == made.shape[-1] and x.is_floating_point())


def seed(like: Tensor) -> Tensor:
    """Gradients of the results of all tokens."""
    drawn = torch.randn(ALL, like.shape[1], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return drawn.to(like.dtype)
