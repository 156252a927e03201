"""Ranks that were given models of unequal weights."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar


def weights_of_each_rank() -> tuple[Tensor, Tensor]:
    """The weight that this rank drew, and the one it trains."""
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(8, 4).double()
    example = (torch.zeros(4, 8, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64))
    parallel = autopar.parallelize(model, example, mesh={"dp": 2}, loss_fn=nn.functional.mse_loss)
    return model.weight.detach(), parallel.full_state_dict()["weight"]
