"""What a process of the training tests does, and the single-device run that it is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from autopar.ir.mesh import Mesh
from autopar.runtime.devices import here
from autopar.runtime.holders import Holder
from autopar.runtime.module import ParallelModule
from autopar.runtime.parameters import names_of, whole_of
from tests.harness import refusal
from tests.runtime.programs import Model, batch, program

STEPS = 3


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Large eps: noise in gradients that are zero in exact arithmetic is not blown up."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def expected() -> dict[str, Any]:
    """Loss, gradients and norm of the first step, parameters after the last, on one device."""
    model = Model()
    optimizer = adamw(model)
    found: dict[str, Any] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, h = model(**batch(step))
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(list(gradients.values()))
        found.setdefault(
            "first", {"loss": loss.detach(), "h": h.detach(), "norm": norm, "gradients": gradients}
        )
        optimizer.step()
    found["state"] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return found


def whole(tensor: Tensor | None) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def local(model: ParallelModule, step: int) -> dict[str, Tensor]:
    parts = model.shard_inputs(batch(step))
    assert isinstance(parts, dict)
    return parts


def make(case: dict[str, Any], **options: Any) -> ParallelModule:
    made = program(**case)
    mesh = init_device_mesh("cpu", tuple(size for _, size in made.mesh.axes), mesh_dim_names=made.mesh.names)
    model = Model()
    return ParallelModule(made, mesh, whole_of(model), names=names_of(model), **options)


def train(case: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The same on this process's part of a program."""
    model = make(case, **options)
    optimizer = adamw(model)
    found: dict[str, Any] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model.train_step(**local(model, step))
        if not found:
            gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
            norm = model.clip_grad_norm_(1e9)
            found["first"] = {"loss": loss, "norm": norm, "gradients": gradients}
        optimizer.step()
    found["state"] = model.full_state_dict()
    return found


def forward(case: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Plain forward and backward."""
    model = make(case, **options)
    loss, h = model(**local(model, 0))
    loss.backward()
    gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
    return {"first": {"loss": loss.detach(), "h": h.full_tensor().detach(), "gradients": gradients}}


def run_all(function: Any, cases: list[dict[str, Any]], options: dict[str, Any] | None = None) -> list[Any]:
    """Several programs in one set of processes: starting them costs more than running."""
    return [function(case, options or {}) for case in cases]


def inspect(case: dict[str, Any]) -> dict[str, Any]:
    """What a user can see of a module, as plain data."""
    model = make(case)
    parts = local(model, 0)
    model.train_step(**parts)
    held = dict(model._parts[0].top.all_held())
    for holder in model._parts[0].top.modules():
        if isinstance(holder, Holder):
            held.update(holder.all_held())
    named = dict(model.named_parameters())
    once = model.clip_grad_norm_(1e9)
    model.train_step(**parts)
    twice = model.clip_grad_norm_(0.5)
    whole_batch = batch()
    return {
        "names": list(named),
        "state": list(model.state_dict()),
        "same objects": all(held[name] is parameter for name, parameter in named.items()),
        "tied": model.get_parameter("head.weight") is model.get_parameter("embed.weight"),
        "dtensors": all(isinstance(p, DTensor) and isinstance(p.grad, DTensor) for p in named.values()),
        "all have gradients": all(p.grad is not None for p in named.values()),
        "place": (model.data_parallel_rank, model.data_parallel_size),
        "accumulated": float(twice / once),
        "clipped": float(model.clip_grad_norm_(1e9)),
        "shape": refusal(lambda: model.train_step(**whole_batch)),
        "dtype": refusal(lambda: model.train_step(parts["ids"], parts["labels"].float())),
        "missing": refusal(lambda: model.train_step(parts["ids"])),
        "unknown": refusal(lambda: model.train_step(**parts, mask=parts["ids"])),
        "mesh": refusal(
            lambda: here(Mesh((("dp", 2),)), init_device_mesh("cpu", (2,), mesh_dim_names=("x",)))
        ),
    }
