"""What a process of these tests does through the public API, and the single-device run it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

import autopar
from tests.harness import refusal
from tests.on_mesh import OnMesh
from tests.state.networks import made
from tests.state.simulated import FREE

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Case(OnMesh):
    name: str

    def __str__(self) -> str:
        return "-".join(self.words(self.name))


def train(case: Case) -> dict[str, Any]:
    """Two steps, then a plain forward and backward; everything whole."""
    model, inputs = made(case.name)
    parallel = autopar.parallelize(model, inputs, mesh=dict(case.mesh), profile=FREE, **case.options)
    batch = parallel.shard_inputs(inputs)
    found: dict[str, Any] = {"losses": [], "gradients": []}
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, {})
        found["losses"].append(parallel.train_step(*args, **kwargs))
        found["gradients"].append(gradients_of(parallel))
        optimizer.step()
    optimizer.zero_grad()
    out = parallel(*args, **kwargs)
    found["kind"] = type(out).__name__
    found["outputs"] = [whole(leaf) for leaf in tree_leaves(out)]
    loss_of(out).backward()
    found["gradients"].append(gradients_of(parallel))
    found["state"] = parallel.full_state_dict()
    found["buffers"] = {name: whole(buffer) for name, buffer in parallel.named_buffers()}
    return found


def expected(name: str) -> dict[str, Any]:
    """The same on one device."""
    model, inputs = made(name)
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    found: dict[str, Any] = {"losses": [], "gradients": []}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(*args, **kwargs))
        loss.backward()
        found["losses"].append(loss.detach())
        found["gradients"].append(gradients_of(model))
        optimizer.step()
    optimizer.zero_grad()
    out = model(*args, **kwargs)
    found["kind"] = type(out).__name__
    found["outputs"] = [whole(leaf) for leaf in tree_leaves(out)]
    loss_of(out).backward()
    found["gradients"].append(gradients_of(model))
    found["state"] = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
    found["buffers"] = {key: tensor.clone() for key, tensor in model.named_buffers()}
    return found


def loss_of(out: Any) -> Tensor:
    found = out if isinstance(out, Tensor) else out["loss"] if isinstance(out, dict) else out[0]
    assert isinstance(found, Tensor)
    return found


def whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().clone() if isinstance(value, Tensor) else value


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def refusals() -> dict[str, str]:
    """What a call is told that is not the example's; the next good call is none the worse."""
    model, inputs = made("options")
    parallel = autopar.parallelize(model, inputs, mesh={"dp": 2}, profile=FREE)
    batch = parallel.shard_inputs(inputs)
    rest = {key: value for key, value in batch.items() if key != "scale"}
    found = {
        "another number": refusal(parallel.train_step, **batch | {"scale": 3.0}),
        "another string": refusal(parallel.train_step, **batch | {"mode": "mean"}),
        "left out": refusal(parallel.train_step, **rest),
        "no mask": refusal(parallel.train_step, **batch | {"mask": None}),
        "a tensor for a number": refusal(parallel.train_step, **batch | {"scale": torch.ones(())}),
        "other nesting": refusal(parallel.train_step, **batch | {"xs": batch["xs"][:1]}),
        "unknown": refusal(parallel.train_step, **batch | {"more": 1}),
        "shape": refusal(parallel.train_step, **inputs),
    }
    parallel.train_step(**batch)
    return found
