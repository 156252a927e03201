"""Any model on any mesh under any legal plan, simulated, and the comparison with plain torch."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autopar.ir.errors import UnsupportedError, VerificationError
from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
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
from autopar.runtime.simulate import Simulated, simulate
from tests.lowered import pricing_of
from tests.parity.planned import MEMORY_BYTES, NETWORKS
from tests.parity.shuffled import shuffled

# Sums of numbers near 1 in float64 differ by as much in another order; a saturated model's gradients are smaller.
NOISE = 1e-14
# Another order of sums may change a gradient by so many times what the last bit of the parameters does.
SHAKEN = 4


def simulated(
    model: nn.Module, batch: Mapping[str, Tensor], mesh: Mesh, *, microbatches: int = 1, zero: int | None = None,
    recompute: str | None = None, folded: bool = True, seed: int | None = None,
) -> tuple[Program, Simulated]:  # fmt: skip
    """The program of the best plan for even prices, or for the random prices of ``seed``, and what it computes.

    ``model(**batch)`` is a loss, or returns one. Raises UnsupportedError or InfeasibleError if no plan is legal.
    """
    traced = trace(model, dict(batch))
    assert traced.loss_output is not None
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
    encoded = build(prepared, places, pricing, microbatches)
    problem = encoded.problem if seed is None else shuffled(encoded.problem, seed)
    solution = solve(problem, memory_bytes=MEMORY_BYTES, effort=1)
    if not solution.found:
        raise UnsupportedError(f"no placement is legal on mesh({mesh}) with {microbatches} microbatches")
    program = lower(prepared, decode(prepared, encoded, solution, full), Conversions(pricing), microbatches)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers()), **traced.constants}
    return program, simulate(program, dict(batch), {key: tensor.detach() for key, tensor in state.items()})


def shaken(model: nn.Module, batch: Mapping[str, Tensor], times: int = 3) -> dict[str, float]:
    """How much each gradient changes where parameters change in their last bit: no order of sums keeps more digits."""
    rng = torch.Generator().manual_seed(0)
    exact = alone(model, batch)[1]
    most = dict.fromkeys(exact, 0.0)
    for _ in range(times):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                bits = torch.randint(-1, 2, parameter.shape, generator=rng).to(parameter.dtype)
                parameter.mul_(1 + torch.finfo(parameter.dtype).eps * bits)
        for name, gradient in alone(other, batch)[1].items():
            most[name] = max(most[name], float((gradient - exact[name]).abs().max()))
    return most


def alone(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of one device, plain torch."""
    model.zero_grad()
    result = model(**batch)
    loss = result if isinstance(result, Tensor) else result.loss
    loss.backward()
    return loss.detach(), {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


def check_against_torch(found: Simulated, model: nn.Module, batch: Mapping[str, Tensor], tolerance: float) -> None:
    """Raise VerificationError where the loss or a gradient is not that of one device."""
    loss, wanted = alone(model, batch)
    assert found.loss is not None
    compare({"loss": found.loss.double()}, {"loss": loss.double()}, tol=tolerance, what="loss")
    assert set(found.gradients) == set(wanted)

    def without(noise: Mapping[str, float]) -> dict[str, Tensor]:
        return {
            name: wanted[name] if float((got - wanted[name]).abs().max()) <= noise[name] else got  # NaN is no noise
            for name, got in found.gradients.items()
        }

    try:
        compare(without(dict.fromkeys(wanted, NOISE)), wanted, tol=tolerance, what="gradients")
    except VerificationError:  # or is it the model that has no such digits?
        noise = {name: max(NOISE, SHAKEN * change) for name, change in shaken(model, batch).items()}
        compare(without(noise), wanted, tol=tolerance, what="gradients")
