"""What a process of the tests of several modules and several worlds does."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autopar.runtime.module import ParallelModule
from tests.parity.processes import Case, adamw, parallel, step


def trained(case: Case) -> tuple[ParallelModule, list[float]]:
    """A module after a step, and the loss, the norm of its gradients and the loss of the step after."""
    model = parallel(case)
    optimizer = adamw(model)
    found = [step(model, case.batch(0)), model.clip_grad_norm_(0.5)]
    optimizer.step()
    optimizer.zero_grad()
    found.append(step(model, case.batch(1)))
    return model, [float(value) for value in found]


def several(meshes: list[Mapping[str, int]]) -> list[list[float]]:
    """Modules one after the other in one world, the first gone, the others alive; then a step of each once more."""
    cases = [Case(model="gpt2", mesh=mesh, options={"zero": 3}) for mesh in meshes]
    found = [trained(cases[0])[1]]
    gc.collect()
    held = []
    for case in cases:
        model, numbers = trained(case)
        held.append((case, model))
        found.append(numbers)
    for case, model in held:
        model.zero_grad()
        again = [float(step(model, case.batch(1))) for _ in range(2)]
        assert again[0] == again[1]
        found.append([*found[0][:2], again[0]])
    return found


def worlds(store: str, meshes: list[Mapping[str, int]]) -> list[list[float]]:
    """The same modules in a world whose groups have other numbers, and in the one that takes its place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(10):
        dist.new_group(list(range(size)))
    cases = [Case(model="gpt2", mesh=mesh, options={"zero": 3}) for mesh in meshes]
    found = [trained(case)[1] for case in cases]
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    return [*found, *(trained(case)[1] for case in cases)]


def expected() -> list[float]:
    """On one device."""
    case = Case(model="gpt2", mesh={})
    model: Any = case.build()
    optimizer = adamw(model)
    first, second = (dict(case.batch(index)) for index in range(2))  # type: ignore[arg-type]
    loss = model(**first).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return [float(value.detach()) for value in (loss, norm, model(**second).loss)]
