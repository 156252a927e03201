"""One random case: a model, a mesh and a legal plan, simulated and compared with plain torch.

    seed → model and batch → trace → canonical graph → fold → plan for real or random prices → lower → simulate

A case is right if loss and every gradient are torch's, or refused if no placement is legal and the error says so.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from random import Random

import torch

from autopar.ir.errors import InfeasibleError, UnsupportedError
from autopar.ir.mesh import Mesh
from autopar.passes.assignment import decode
from autopar.passes.build import build
from autopar.passes.candidate import Settings, StoredParameter, with_time
from autopar.passes.conversions import Conversions
from autopar.passes.lower import lower
from autopar.passes.positions import positions
from autopar.passes.prepare import canonical_graph, input_dims, prepare
from autopar.passes.solve import solve
from autopar.passes.trace import trace
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.fuzz.model import Model, Sizes
from tests.lowered import pricing_of
from tests.parity.planned import MEMORY_BYTES, NETWORKS
from tests.parity.shuffled import shuffled

TOLERANCE = 1e-9
AXES = ("dp", "tp", "cp", "x")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``refused``: why no plan is legal, empty where one was right."""

    text: str
    refused: str = ""


def draw_mesh(rng: Random, sizes: Sizes) -> Mesh:
    """One axis of 2 to 4 devices or two of 2; dp divides the batch, cp the sequence."""
    extents = {"dp": sizes.batch, "cp": sizes.seq}
    count = rng.choice((1, 1, 2))
    size = rng.choice((2, 3, 4)) if count == 1 else 2
    fits = [axis for axis in AXES if extents.get(axis, size) % size == 0]
    return Mesh(tuple((axis, size) for axis in rng.sample(fits, min(count, len(fits)))))


def run_case(seed: int) -> Outcome:
    """Raise VerificationError or AssertionError, with the case in a note, where the plan is wrong."""
    rng = Random(zlib.crc32(str(seed).encode()))
    torch.manual_seed(seed)
    sizes = Sizes.draw(rng)
    model = Model(rng, sizes)
    batch = model.inputs(rng)
    mesh = draw_mesh(rng, sizes)
    local = math.gcd(sizes.batch // mesh.size("dp"), 4)
    microbatches = rng.choice([n for n in (1, 2, 4) if local % n == 0])
    zero, recompute = rng.choice((None, 0, 3)), rng.choice((None, None, "full"))
    folded, real = rng.random() < 0.6, rng.random() < 0.25
    text = (
        f"seed {seed}: {'-'.join(model.kinds)} ×{len(model.stacks)} loss={model.loss} {sizes} mesh({mesh}) "
        f"microbatches={microbatches} zero={zero} recompute={recompute} folded={folded} real={real}"
    )
    try:
        return _run(seed, model, batch, mesh, microbatches, zero, recompute, folded, real, text)
    except Exception as error:
        error.add_note(text)
        raise


def _run(
    seed: int, model: Model, batch: dict[str, torch.Tensor], mesh: Mesh, microbatches: int, zero: int | None,
    recompute: str | None, folded: bool, real: bool, text: str,
) -> Outcome:  # fmt: skip
    traced = trace(model, batch)
    graph = canonical_graph(traced.graph)
    parameters = {
        p.fqn: StoredParameter(dtype=p.type.dtype, shape=p.type.shape, compute_dtype=p.compute_dtype,
                               trainable=p.trainable, buffer=p.buffer)
        for p in traced.parameters
    }  # fmt: skip
    for node in graph.sources("constant"):
        kind = node.result.type
        parameters[str(node.attr("fqn"))] = StoredParameter(
            dtype=kind.dtype, shape=kind.shape, compute_dtype=kind.dtype, trainable=False, buffer=True
        )
    settings = Settings(inputs=input_dims(graph), zero=zero, recompute=recompute)
    prepared = prepare(graph, traced.loss_output, parameters, settings, folded=folded)
    full = with_time(mesh, microbatches)
    pricing = pricing_of(full, str(NETWORKS / "fair.toml"))
    places = positions(prepared.graph, prepared.rules, settings.inputs)
    try:
        encoded = build(prepared, places, pricing, microbatches)
    except (UnsupportedError, InfeasibleError) as error:
        return Outcome(text=text, refused=str(error))
    problem = encoded.problem if real else shuffled(encoded.problem, seed)
    solution = solve(problem, memory_bytes=MEMORY_BYTES, effort=1)
    if not solution.found:
        return Outcome(text=text, refused=f"no legal plan: {solution.status}")
    program = lower(prepared, decode(prepared, encoded, solution, full), Conversions(pricing), microbatches)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers()), **traced.constants}
    found = simulate(program, batch, {key: tensor.detach() for key, tensor in state.items()})
    model.zero_grad()
    expected = model(**batch)
    expected.backward()
    assert found.loss is not None
    compare({"loss": found.loss}, {"loss": expected.detach()}, tol=TOLERANCE, what="loss")
    wanted = {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in model.named_parameters()}
    compare(found.gradients, wanted, tol=TOLERANCE, what="gradients")
    return Outcome(text=text)
