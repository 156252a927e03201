"""What a process does with a family, through the public API."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.module import ParallelModule
from autopar.runtime.parity import compare
from tests.families import FAMILIES
from tests.families.measure import EPS, LEARNING_RATE, PROFILE, STEPS, alone

MAX_NORM = 1e9


def trained(name: str) -> float:
    """Three steps on dp 2 × tp 2; rank 0 compares with one device and returns the largest error."""
    family = FAMILIES[name]
    torch.manual_seed(0)
    model, batch = family.build(), family.batch()
    expected = alone(copy.deepcopy(model), batch, family) if dist.get_rank() == 0 else None
    parallel = autopar.parallelize(
        model, batch, mesh={"dp": 2, "tp": 2}, profile=PROFILE, num_microbatches=1, loss_fn=family.loss_fn
    )
    losses, gradients, norm = stepped(parallel, batch, MAX_NORM)
    state = parallel.full_state_dict()
    if expected is None:
        return 0.0
    squares = sum(float(g.double().square().sum()) for g in expected.gradients.values())
    wanted = torch.tensor(squares**0.5, dtype=torch.float64)
    worst = compare({"norm": norm}, {"norm": wanted}, tol=family.tolerance, what="norm")
    found: dict[str, Any] = {
        "losses": losses, "gradients": gradients,
        "parameters": {n: state[n] for n in expected.parameters},
        "buffers": {n: state.get(n, b) for n, b in expected.buffers.items()},
    }  # fmt: skip
    for what, tensors in found.items():
        worst = max(worst, compare(tensors, getattr(expected, what), tol=family.tolerance, what=what))
    return worst


def stepped(
    parallel: ParallelModule, batch: Any, max_norm: float
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Train on a rank's part of the batch: losses of all steps, whole gradients and norm of the first."""
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=LEARNING_RATE, eps=EPS)
    part: Any = parallel.shard_inputs(batch)
    losses: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    norm = torch.zeros(())
    for step in range(STEPS):
        optimizer.zero_grad()
        losses[f"step {step}"] = parallel.train_step(**part).double()
        if step == 0:
            gradients = {n: _whole(p.grad) for n, p in parallel.named_parameters() if p.grad is not None}
            norm = _whole(parallel.clip_grad_norm_(max_norm))
        optimizer.step()
    return losses, gradients, norm


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
