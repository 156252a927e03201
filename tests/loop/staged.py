"""What a process does with a plan of pipeline stages besides training: evaluate, scale the loss, stop and go on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import autopar
from autopar.runtime.module import ParallelModule
from tests.loop.halves import HALF, SMALL
from tests.loop.restarts import FAIR, optimizer, train
from tests.parity.processes import Case

OPTIONS: dict[str, Any] = {"num_microbatches": 2, "schedule": "1f1b"}
MODEL = Case(model="gpt2", mesh={})


class Deep(nn.Module):
    """Equal layers, and a loss whose gradients are below what float16 can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return nn.functional.mse_loss(x.float(), target.float()) * SMALL


def deep() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = Deep()
    return model, {"x": torch.randn(8, 4, 16), "target": torch.randn(8, 4, 16)}


def parallel(mesh: dict[str, int], **options: Any) -> tuple[ParallelModule, Any]:
    model = autopar.parallelize(MODEL.build(), MODEL.batch(0), mesh=mesh, profile=FAIR, **options)
    return model, model.shard_inputs(MODEL.batch(0))


def run() -> dict[str, Any]:
    """At {pp 2}, at {dp 2} under ZeRO 3, and back: the state of each goes on in the other."""
    staged, part = parallel({"pp": 2}, **OPTIONS)
    steps = optimizer(staged)
    found: dict[str, Any] = {"losses": train(staged, steps, part, 2), "evaluated": float(staged.eval_step(**part))}
    states = [_state(staged, steps)]
    found["more"] = [train(staged, steps, part, 2)]
    other, part = parallel({"dp": 2}, zero=3)
    others = optimizer(other)
    _load(other, others, states[0])
    states.append(_state(other, others))
    found["more"].append(train(other, others, part, 2))
    staged, part = parallel({"pp": 2}, **OPTIONS)
    steps = optimizer(staged)
    _load(staged, steps, states[1])
    states.append(_state(staged, steps))
    found["more"].append(train(staged, steps, part, 2))
    found["same"] = [_same(states[0], state) for state in states]
    return found


def _state(model: ParallelModule, steps: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.full_state_dict(), "optimizer": model.full_optimizer_state_dict(steps)}


def _load(model: ParallelModule, steps: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    model.load_full_state_dict(state["model"])
    model.load_full_optimizer_state_dict(steps, state["optimizer"])


def _same(first: Any, second: Any) -> bool:
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def scaled() -> dict[str, Any]:
    """Gradients of a float16 program in stages."""
    model, inputs = deep()
    made = autopar.parallelize(model, inputs, mesh={"pp": 2}, profile=HALF, mixed_precision="fp16", **OPTIONS)
    loss = made.train_step(**made.shard_inputs(inputs))
    return {"loss": loss, "gradients": made.full_gradients(), "scale": made.loss_scale.value}


def expected() -> dict[str, Any]:
    """Both on one device."""
    model = MODEL.build()
    steps = optimizer(model)
    batch: Any = MODEL.batch(0)
    losses = train(model, steps, batch, 2)
    with torch.no_grad():
        evaluated = float(model(**batch).loss)
    shallow, inputs = deep()
    loss = shallow(**inputs)
    loss.backward()
    gradients = {name: p.grad for name, p in shallow.named_parameters()}
    return {
        "losses": losses, "evaluated": evaluated, "more": train(model, steps, batch, 2), "loss": loss.detach(),
        "gradients": gradients,
    }  # fmt: skip


def both() -> tuple[dict[str, Any], dict[str, Any]]:
    return run(), scaled()
