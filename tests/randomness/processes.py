"""What a process of these tests does: train a model with dropout through the public API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.module import ParallelModule
from tests.harness import refusal
from tests.on_mesh import OnMesh
from tests.randomness.dropped import FAIR, LOSSES, MODELS, batch, example

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Run(OnMesh):
    model: str

    def __str__(self) -> str:
        return "-".join(self.words(self.model))


def trained(run: Run) -> dict[str, Any]:
    """Losses and gradients of two steps without an optimizer, then of ``forward``."""
    torch.manual_seed(0)
    model = MODELS[run.model]().train()
    torch.manual_seed(40 + dist.get_rank())  # ranks differ: that of rank 0 counts
    parallel = autopar.parallelize(
        model, batch(run.model), mesh=run.mesh or None, profile=str(FAIR), **run.options
    )
    parts = parallel.shard_inputs(batch(run.model))
    assert isinstance(parts, dict)
    found: dict[str, Any] = {"losses": [], "gradients": []}
    for _ in range(STEPS):
        found["losses"].append(parallel.train_step(**parts))
        found["gradients"].append(_gradients(parallel))
    torch.rand(dist.get_rank() + 1)  # what a rank draws for itself changes nothing
    loss = parallel(**parts).loss
    loss.backward()
    found["losses"].append(loss.detach())
    found["gradients"].append(_gradients(parallel))
    found["seed"], found["step"] = parallel.rng_seed, parallel.rng_step
    parallel.rng_step = 1
    found["second step again"] = parallel.train_step(**parts)
    found["recompute"] = dict(parallel.plan.recompute)
    return found


def _gradients(model: ParallelModule) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert isinstance(parameter.grad, DTensor)
            found[name] = parameter.grad.full_tensor().clone()
    model.zero_grad()
    return found


def evaluated() -> str:
    """The message of an evaluation by a program made for training, where the model is not at hand."""
    x, target = example("masks")
    model = autopar.parallelize(MODELS["masks"](), (x, target), profile=str(FAIR), loss_fn=LOSSES["masks"])
    model(x, target=target)
    model._modes._make = None
    model.eval()
    return refusal(model, x, target=target)
