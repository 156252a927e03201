"""What a process of the pipeline tests does: the training of ``tests/parity``, on its stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from autopar.runtime.module import ParallelModule
from tests.parity.processes import ACCUMULATED, MAX_NORM, STEPS, Case, adamw, parallel, step

torch.set_num_threads(1)


def gradients_of(model: ParallelModule) -> dict[str, Tensor]:
    """Of this rank's stages, whole on the axes inside of them."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            whole = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            found[name] = whole.clone()
    return found


def train(case: Case) -> dict[str, Any]:
    """The same as ``tests.parity.processes.expected`` on this process's stages."""
    model = parallel(case)
    optimizer = adamw(model)
    found: dict[str, Any] = {
        "losses": [], "mesh": dict(model.plan.mesh), "stages": model.plan.stages, "schedule": model.plan.schedule,
        "microbatches": model.plan.num_microbatches, "zero": dict(model.plan.zero),
    }  # fmt: skip
    for index in range(STEPS):
        optimizer.zero_grad()
        found["losses"] += [step(model, case.batch(ACCUMULATED * index + part)) for part in range(ACCUMULATED)]
        if index == 0:
            found["gradients"] = gradients_of(model)
        norm = model.clip_grad_norm_(MAX_NORM)
        found.setdefault("norm", norm)
        optimizer.step()
    found["state"] = model.full_state_dict()
    return found


def each(work: list[tuple[Callable[[Case], Any], Case]]) -> list[Any]:
    """Several cases in one set of processes; an error is a result, so that all are seen."""
    return [function(case) for function, case in work]
