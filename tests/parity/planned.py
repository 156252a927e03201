"""A tiny model planned for a mesh and lowered, everything between traced once; and what one device computes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from autopar.compiling import stored_parameters
from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from autopar.passes.assignment import Assignment, decode
from autopar.passes.build import Encoded, Model, build
from autopar.passes.candidate import Settings, with_time
from autopar.passes.conversions import Conversions
from autopar.passes.lower import lower
from autopar.passes.positions import Positions, positions
from autopar.passes.prepare import canonical_graph, input_dims, prepare
from autopar.passes.solve import Solution, solve
from autopar.passes.trace import Traced, trace
from autopar.runtime.parity import compare
from autopar.runtime.simulate import Simulated, simulate
from tests.lowered import pricing_of
from tests.models import BUILDERS, TOLERANCES, inputs

NETWORKS = Path(__file__).parents[1] / "networks"
MEMORY_BYTES = 10**12


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is planned. ``mesh`` as text, ``dp=2,tp=2``; ``network`` names a file of ``tests/networks``."""

    model: str
    mesh: str
    microbatches: int = 1
    zero: int | None = None
    recompute: str | None = None
    folded: bool = True
    layers: int = 2
    network: str = "fair"

    def __str__(self) -> str:
        words = [self.model, self.mesh]
        words += [f"{self.microbatches}mb"] if self.microbatches > 1 else []
        words += [f"zero{self.zero}"] if self.zero is not None else []
        words += [f"recompute-{self.recompute}"] if self.recompute else []
        words += ["unfolded"] if not self.folded else []
        words += [self.network] if self.network != "fair" else []
        return "-".join(words)


@dataclass(frozen=True, kw_only=True)
class Planned:
    case: Case
    model: Model
    encoded: Encoded
    assignment: Assignment
    program: Program
    solution: Solution

    @property
    def objective_ns(self) -> int:
        return self.solution.objective_ns


def mesh_of(text: str) -> Mesh:
    return Mesh(tuple((axis, int(size)) for axis, size in (part.split("=") for part in text.split(","))))


@functools.cache
def built(name: str, layers: int = 2) -> nn.Module:
    return BUILDERS[name](layers)


@functools.cache
def traced(name: str, layers: int = 2) -> Traced:
    """The trace with the loss as its only output, as training needs it."""
    found = trace(built(name, layers), inputs(name))
    assert found.loss_output is not None
    only = replace(found.graph, outputs=(found.graph.outputs[found.loss_output],))
    return replace(found, graph=canonical_graph(only))


@functools.cache
def prepared(name: str, layers: int, folded: bool, zero: int | None, recompute: str | None) -> Model:
    found = traced(name, layers)
    settings = Settings(inputs=input_dims(found.graph), zero=zero, recompute=recompute)
    return prepare(found.graph, 0, stored_parameters(found), settings, folded=folded)


@functools.cache
def places(name: str, layers: int, folded: bool) -> Positions:
    model = prepared(name, layers, folded, None, None)
    return positions(model.graph, model.rules, model.settings.inputs)


@functools.cache
def planned(case: Case) -> Planned:
    """The optimal plan."""
    model = prepared(case.model, case.layers, case.folded, case.zero, case.recompute)
    mesh = with_time(mesh_of(case.mesh), case.microbatches)
    pricing = pricing_of(mesh, str(NETWORKS / f"{case.network}.toml"))
    encoded = build(model, places(case.model, case.layers, case.folded), pricing, case.microbatches)
    solution = solve(encoded.problem, memory_bytes=MEMORY_BYTES)
    assert solution.status == "optimal"
    assignment = decode(model, encoded, solution, mesh)
    program = lower(model, assignment, Conversions(pricing), case.microbatches)
    return Planned(case=case, model=model, encoded=encoded, assignment=assignment, program=program,
                   solution=solution)  # fmt: skip


def tensors(name: str, layers: int = 2) -> dict[str, Tensor]:
    """Parameters, buffers and constants by name, whole."""
    model = built(name, layers)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers()), **traced(name, layers).constants}
    return {key: tensor.detach() for key, tensor in state.items()}


@functools.cache
def reference(name: str, empty: int, layers: int = 2) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients on one device."""
    model = built(name, layers)
    model.zero_grad()
    loss = model(**inputs(name, empty=empty)).loss
    loss.backward()
    return loss.detach(), {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}


def check(found: Simulated, name: str, empty: int, layers: int = 2) -> float:
    """Raise VerificationError where loss or gradients differ; returns the largest gradient error."""
    loss, gradients = reference(name, empty, layers)
    tolerance = TOLERANCES[name]
    assert found.loss is not None
    compare({"loss": found.loss.double()}, {"loss": loss.double()}, tol=tolerance, what="loss")
    return compare(found.gradients, gradients, tol=tolerance, what="gradients")


def run(plan: Planned, empty: int = 1, **options: object) -> Simulated:
    case = plan.case
    return simulate(plan.program, inputs(case.model, empty=empty), tensors(case.model, case.layers), **options)  # type: ignore[arg-type]


torch.set_num_threads(1)
