"""What a process of the restart tests does: train at one layout, go on at another, or on one device."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

import autopar
from autopar.runtime.module import ParallelModule
from tests.harness import refusal
from tests.modes.networks import made as dropped
from tests.modes.processes import call
from tests.on_mesh import OnMesh
from tests.parity.processes import Case as Model
from tests.state.networks import made as unusual

FAIR = str(Path(__file__).parents[1] / "networks" / "fair.toml")
BEFORE, AFTER = 2, 2
BUILDERS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "frozen and tied": lambda: _parity("bert frozen"), "tied": lambda: _parity("gpt2"),
    "dropout": lambda: dropped("gpt2"), "running statistics": lambda: dropped("batch norm"),
    "never used": lambda: unusual("reused"),
}  # fmt: skip


def _parity(name: str) -> tuple[nn.Module, Any]:
    case = Model(model=name, mesh={})
    return case.build(), case.batch(0)


@dataclass(frozen=True, kw_only=True)
class Case(OnMesh):
    name: str

    def __str__(self) -> str:
        return "-".join(self.words(self.name))

    def build(self) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        return BUILDERS[self.name]()

    def parallel(self) -> tuple[ParallelModule, Any]:
        model, inputs = self.build()
        made = autopar.parallelize(model, inputs, mesh=dict(self.mesh), profile=FAIR, **self.options)
        return made, made.shard_inputs(inputs)


def optimizer(model: nn.Module) -> optim.Optimizer:
    """Two groups, and state of every kind: counters, averages, maxima."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for _, p in named if p.dim() <= 1], "lr": 5e-3},
    ]
    return optim.AdamW(groups, lr=1e-2, eps=1e-4, amsgrad=True)


def train(model: nn.Module, optimizer: optim.Optimizer, batch: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        if isinstance(model, ParallelModule):
            losses.append(float(call(model.train_step, batch)))
        else:
            out = call(model, batch)
            loss = out if isinstance(out, Tensor) else out["loss"]
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
    return losses


def saved(case: Case) -> dict[str, Any]:
    """Everything after ``BEFORE`` steps, and what comes of training on without a break."""
    model, batch = case.parallel()
    steps = optimizer(model)
    train(model, steps, batch, BEFORE)
    found = {"state": model.full_state_dict(), "optimizer": model.full_optimizer_state_dict(steps),
             "training": model.training_state_dict()}  # fmt: skip
    losses = train(model, steps, batch, AFTER)
    return {**found, "losses": losses, "end": model.full_state_dict(), "first": model.full_optimizer_state_dict(steps)}


def as_bytes(state: dict[str, Any]) -> bytes:
    """As a file would hold it: tensors handed to processes as they are would share their memory."""
    held = io.BytesIO()
    torch.save({key: state[key] for key in ("state", "optimizer", "training")}, held)
    return held.getvalue()


def resumed(case: Case, data: bytes) -> dict[str, Any]:
    """The rest of a run at another layout: what was loaded, and what came of it."""
    from_ = torch.load(io.BytesIO(data))
    model, batch = case.parallel()
    steps = optimizer(model)
    train(model, steps, batch, 1)  # what is loaded replaces what there is
    model.load_full_state_dict(from_["state"])
    model.load_full_optimizer_state_dict(steps, from_["optimizer"])
    model.load_training_state_dict(from_["training"])
    loaded = {"state": model.full_state_dict(), "optimizer": model.full_optimizer_state_dict(steps)}
    return {**loaded, "losses": train(model, steps, batch, AFTER), "end": model.full_state_dict()}


def alone(case: Case, data: bytes) -> dict[str, Any]:
    """The rest of a run by the original model, with torch's own functions."""
    from_ = torch.load(io.BytesIO(data))
    model, inputs = case.build()
    steps = optimizer(model)
    model.load_state_dict(from_["state"], strict=True)
    options = StateDictOptions(full_state_dict=True, strict=False)  # strict wants a state of what was never used
    set_optimizer_state_dict(model, steps, from_["optimizer"], options=options)
    losses = train(model, steps, inputs, AFTER)
    return {"losses": losses, "end": {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}}


def from_one_device(case: Case) -> dict[str, Tensor]:
    """The original model's own state dict, other weights than those parallelized, loaded and given back."""
    model, _ = case.parallel()
    original, _ = case.build()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.mul_(1.5)
    state = {name: tensor.detach().clone() for name, tensor in original.state_dict().items()}
    model.load_full_state_dict(state)
    back = model.full_state_dict()
    assert list(back) == list(state)
    return {name: back[name] - tensor for name, tensor in state.items()}


def refusals(case: Case) -> dict[str, str]:
    """What is told of states that do not fit; the model is as it was."""
    model, _ = case.parallel()
    before = model.full_state_dict()
    steps, other = optimizer(model), optim.AdamW(model.parameters())
    short = dict(list(before.items())[2:])
    first = next(iter(before))
    state = model.full_optimizer_state_dict(other)
    found = {
        "names": refusal(lambda: model.load_full_state_dict({**short, "more": torch.ones(1)})),
        "shape": refusal(lambda: model.load_full_state_dict({**before, first: torch.ones(3, 3)})),
        "assign": refusal(lambda: model.load_state_dict(model.state_dict(), assign=True)),
        "groups": refusal(lambda: model.load_full_optimizer_state_dict(steps, state)),
        "stranger": refusal(lambda: model.full_optimizer_state_dict(optim.SGD(nn.Linear(1, 1).parameters()))),
        "half": refusal(lambda: model.half()),
        "same device": refusal(lambda: model.to("cpu", torch.float64)),
    }
    model.load_full_state_dict({}, strict=False)
    copied = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(copied)
    after = model.full_state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return found
