"""What becomes of a family: traced, planned, and trained for three steps on a simulated mesh as on one device."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import Readied, ready
from autopar.finding import find_plan
from autopar.ir.errors import AutoparError, VerificationError
from autopar.ir.plan import Plan
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.families.family import Family
from tests.parity.split import split_share

MESHES: tuple[Mapping[str, int], ...] = ({"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2})
PROFILE = str(Path(__file__).parents[1] / "networks" / "fair.toml")
STEPS, LEARNING_RATE, EPS = 3, 1e-3, 1e-4
# Of the matrix products, on each axis of a mesh: below, a plan proves nothing about splitting.
LEAST_SPLIT = 0.95


@dataclass(frozen=True, kw_only=True)
class Cell:
    """``split``: least share over the axes of the matrix products that each axis divides; ``reason`` of a failure."""

    passed: bool
    split: float = 0.0
    worst: float = 0.0
    islands: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """``refused``: why the model was not traced, if it was not."""

    family: str
    operations: int = 0
    refused: str = ""
    cells: tuple[Cell, ...] = ()

    @property
    def passed(self) -> bool:
        return bool(self.cells) and all(cell.passed for cell in self.cells)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Losses by step, gradients of the first step, parameters and buffers after the last."""

    losses: dict[str, Tensor]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]


def measure(family: Family, meshes: tuple[Mapping[str, int], ...] = MESHES) -> Measured:
    """Train the family on every mesh and on one device, and compare."""
    torch.manual_seed(0)
    model, batch = family.build(), family.batch()
    try:
        readied = ready(model, batch, _arguments(family, {"dp": 1}))
    except AutoparError as error:
        return Measured(family=family.name, refused=str(error).splitlines()[0])
    expected = alone(copy.deepcopy(model), batch, family)
    cells = tuple(_cell(family, model, batch, readied, expected, mesh) for mesh in meshes)
    return Measured(family=family.name, operations=readied.graph_nodes, cells=cells)


def _arguments(family: Family, mesh: Mapping[str, int]) -> Any:
    world = math.prod(mesh.values())
    return check(
        cluster=f"1x{world}xCPU", mesh=mesh, profile=PROFILE, name=family.name, num_microbatches=1,
        loss_fn=family.loss_fn,
    )  # fmt: skip


def _cell(
    family: Family, model: nn.Module, batch: dict[str, Any], readied: Readied, expected: Trained,
    mesh: Mapping[str, int],
) -> Cell:  # fmt: skip
    try:
        arguments = _arguments(family, mesh)
        plan, program = find_plan(readied, arguments)
        found = on_mesh(program, model, batch, readied)
        worst = 0.0
        for what in ("losses", "gradients", "parameters", "buffers"):
            pair = getattr(found, what), getattr(expected, what)
            worst = max(worst, compare(*pair, tol=family.tolerance, what=what))
    except VerificationError as error:
        return Cell(passed=False, reason=f"wrong: {error}")
    except AutoparError as error:
        return Cell(passed=False, reason=f"refused: {str(error).splitlines()[0]}")
    split = min(split_share(program, axis) for axis in mesh)
    return Cell(passed=True, split=split, worst=worst, islands=_islands(plan))


def _islands(plan: Plan) -> tuple[str, ...]:
    return tuple(island.op for island in plan.islands)


def alone(model: nn.Module, batch: dict[str, Any], family: Family) -> Trained:
    """Three steps of AdamW on one device."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPS)
    losses: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch, family)
        loss.backward()
        losses[f"step {step}"] = loss.detach().double()
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return Trained(
        losses=losses, gradients=gradients, parameters={n: p.detach() for n, p in model.named_parameters()},
        buffers=dict(model.named_buffers()),
    )  # fmt: skip


def loss_of(model: nn.Module, batch: Mapping[str, Any], family: Family) -> Tensor:
    inputs = {name: value for name, value in batch.items() if family.loss_fn is None or name != "target"}
    output = model(**inputs)
    if family.loss_fn is not None:
        return family.loss_fn(output, batch["target"])
    loss = output if isinstance(output, Tensor) else output["loss"] if isinstance(output, dict) else output.loss
    assert isinstance(loss, Tensor)
    return loss


def on_mesh(program: Any, model: nn.Module, batch: dict[str, Any], readied: Readied) -> Trained:
    """The same three steps of the program, every rank simulated."""
    weights = {n: nn.Parameter(p.detach().clone(), p.requires_grad) for n, p in model.named_parameters()}
    buffers = {n: b.detach().clone() for n, b in model.named_buffers()}
    optimizer = torch.optim.AdamW([p for p in weights.values() if p.requires_grad], lr=LEARNING_RATE, eps=EPS)
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    losses: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    for step in range(STEPS):
        state = {**{n: p.detach() for n, p in weights.items()}, **buffers, **readied.traced.constants}
        found = simulate(program, tensors, state)
        assert found.loss is not None
        losses[f"step {step}"] = found.loss.double()
        gradients = gradients or dict(found.gradients)
        for name, gradient in found.gradients.items():
            weights[name].grad = gradient
        buffers.update(found.buffers)
        optimizer.step()
    parameters = {n: p.detach() for n, p in weights.items()}
    return Trained(losses=losses, gradients=gradients, parameters=parameters, buffers=buffers)
