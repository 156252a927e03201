"""What a process of these tests does: train, evaluate, train on; and the model on one device beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import autopar
from autopar.runtime.module import ParallelModule
from autopar.runtime.parity import compare
from tests.harness import refusal
from tests.modes.networks import made
from tests.on_mesh import OnMesh
from tests.state.processes import loss_of, whole

FAIR = str(Path(__file__).parents[1] / "networks" / "fair.toml")


@dataclass(frozen=True, kw_only=True)
class Case(OnMesh):
    """``planned_in``: the mode of the model when it is planned."""

    name: str
    planned_in: str = "train"

    def __str__(self) -> str:
        return "-".join([*self.words(self.name), *(["planned-in-eval"] if self.planned_in == "eval" else [])])


def parallel(case: Case) -> tuple[ParallelModule, Any]:
    model, inputs = made(case.name)
    model.train(case.planned_in == "train")
    return autopar.parallelize(model, inputs, mesh=dict(case.mesh), profile=FAIR, **case.options), inputs


def call(function: Callable[..., Any], batch: Any) -> Any:
    return function(**batch) if isinstance(batch, Mapping) else function(*batch)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def trained(model: ParallelModule, batch: Any, *, evaluate: bool) -> list[Tensor]:
    """Losses of three steps, with or without evaluation between and within them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(call(model.train_step, batch))
        if evaluate:
            call(model.eval_step, batch)
        optimizer.step()
        if evaluate:
            model.eval()
            with torch.no_grad():
                call(model, batch)
            model.train()
    return losses


def run(case: Case) -> dict[str, Any]:
    """Raises VerificationError where evaluation differs from the model's on one device."""
    model, inputs = parallel(case)
    batch = model.shard_inputs(inputs)
    losses = trained(model, batch, evaluate=True)
    before, step = model.full_state_dict(), model.rng_step
    evaluated = call(model.eval_step, batch)  # in training mode all the same
    model.eval()
    again = call(model.eval_step, batch)
    with torch.no_grad():
        out = call(model, batch)
    values = [whole(leaf) for leaf in tree_leaves(out)]
    kind, quiet = type(out).__name__, not any(value.requires_grad for value in tree_leaves(out))
    model.zero_grad()
    backward = call(model.train_step, batch) if not model._modes.running(False).forward_only else None
    found = gradients(model)
    steps = model.rng_step - step
    after = model.full_state_dict()
    plain, _ = parallel(case)
    alone = trained(plain, batch, evaluate=False)

    single, _ = made(case.name)
    single.load_state_dict(before)
    single.eval()
    expected = call(single, inputs)
    loss_of(expected).backward()
    compare(
        {"loss": evaluated, "again": again, **({"step": backward} if backward is not None else {})},
        dict.fromkeys(["loss", "again", *(["step"] if backward is not None else [])], loss_of(expected).detach()),
        tol=1e-10, what=f"{case}: loss",
    )  # fmt: skip
    wanted = [whole(leaf) for leaf in tree_leaves(expected)]
    compare(dict(enumerate_(values)), dict(enumerate_(wanted)), tol=1e-10, what=f"{case}: outputs")
    if backward is not None:
        compare(found, gradients(single), tol=1e-10, what=f"{case}: gradients")
    return {
        "kind": kind == type(expected).__name__, "no graph": quiet and not evaluated.requires_grad,
        "differentiable": backward is not None, "steps": steps,
        "state": all(torch.equal(before[name], after[name]) for name in before),
        "losses": losses, "alone": alone,
        "shared": model._modes.running(False).parts is model._modes.running(True).parts,
        "meta": all(t.is_meta for t in tensors_kept(model)),
    }  # fmt: skip


def tensors_kept(model: ParallelModule) -> list[Tensor]:
    """Parameters and buffers of the copy of the model that a trace in the other mode reads."""
    copy: Any = model._modes._make
    return [*copy._structure.parameters(), *copy._structure.buffers()]


def enumerate_(values: list[Any]) -> list[tuple[str, Tensor]]:
    return [(str(at), value) for at, value in enumerate(values) if isinstance(value, Tensor)]


def drawn(mesh: dict[str, int]) -> dict[str, Any]:
    """A model that draws in evaluation too; and what it draws in training with evaluation in between."""
    model, inputs = parallel(Case(name="always", mesh=mesh))
    batch = model.shard_inputs(inputs)
    first = [call(model.eval_step, batch) for _ in range(2)]
    losses = [call(model.train_step, batch) for _ in range(2)]
    plain, _ = parallel(Case(name="always", mesh=mesh))
    return {"evaluated": first, "losses": losses, "alone": [call(plain.train_step, batch) for _ in range(2)]}


def from_evaluation(name: str, mesh: dict[str, int]) -> dict[str, Any]:
    """Losses of training with a plan that was made in evaluation mode, and with one made in training mode."""
    model, inputs = parallel(Case(name=name, mesh=mesh, planned_in="eval"))
    other, _ = parallel(Case(name=name, mesh=mesh))
    batch = model.shard_inputs(inputs)
    assert not model.training
    first = call(model.train_step, batch)
    model.zero_grad()
    model.rng_step = 0
    losses = [trained(each, batch, evaluate=False) for each in (model, other)]
    return {"losses": losses, "first": first, "states": [model.full_state_dict(), other.full_state_dict()]}


def refusals() -> dict[str, str]:
    """What is told of a mode that cannot be had; training goes on."""
    world = torch.distributed.get_world_size()
    model, inputs = parallel(Case(name="depth", mesh={"dp": world}))
    batch = model.shard_inputs(inputs)
    model.train(torch.distributed.get_rank() == 0)
    found = {"modes differ": refusal(lambda: call(model, batch))}
    model.train()
    other: Any = model._modes._make
    copy, other._structure, other._problem = other._structure, None, "TypeError: cannot pickle a lock"
    found["not copied"] = refusal(lambda: call(model.eval_step, batch))
    other._structure = copy
    call(model.eval_step, batch)
    call(model.train_step, batch)
    scaled, inputs = parallel(Case(name="scaled", mesh={"dp": world}, options={"zero": 3}))
    batch = scaled.shard_inputs(inputs)
    scaled.eval()
    found["forward only"] = refusal(lambda: call(scaled.train_step, batch))
    found["loss has a graph"] = str(call(scaled, batch).requires_grad)
    return found
