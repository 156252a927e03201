"""What every process of a verification does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from autopar.arguments import Arguments, check
from autopar.compiling import Readied, ready
from autopar.cost_model import axis_groups
from autopar.finding import find_plan
from autopar.ir.errors import MismatchError, UnsupportedError, UsageError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS, Pipeline
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.passes.candidate import with_time
from autopar.passes.conversions import Conversions
from autopar.passes.lower import lower
from autopar.passes.pricing import Pricing
from autopar.passes.stages import cut, even_marks
from autopar.passes.transfer import transfer
from autopar.passes.uneven import uneven
from autopar.runtime.agreement import of_rank_0
from autopar.runtime.initialise import tensors_of
from autopar.runtime.inputs import draws, inputs_of
from autopar.runtime.module import ParallelModule
from autopar.runtime.parameters import names_of
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from autopar.verifying.drop import without_collective
from autopar.verifying.sizes import microbatches, smaller_shares
from autopar.verifying.verified import Verified

EXACT, SINGLE = 1e-10, 1e-6
Loss = Callable[[Any, Tensor], Tensor]
# Makes the model and its example inputs anew.
Source = Callable[[], "tuple[nn.Module, tuple[Any, ...] | dict[str, Any]]"]


def run(
    rank: int, say: Callable[[Verified], None], source: Source, data: bytes, mesh: Mesh, loss_fn: Loss | None,
    drop: int | None,
) -> None:  # fmt: skip
    """Train one step as the plan says and on one device; rank 0 tells what it found.

    Raises VerificationError naming the first tensor that differs, MismatchError, and what tracing raises.
    """
    plan = Plan.from_bytes(data)
    torch.manual_seed(0)  # inputs that are drawn are the same in every process
    model, inputs = source()
    arguments = check(
        cluster=f"1x{mesh.world_size}xCPU", optimizer=plan.optimizer, mixed_precision=plan.mixed_precision,
        loss_fn=loss_fn, rng=plan.rng,
    )  # fmt: skip
    folded = bool(plan.blocks) or plan.schedule is None  # a model with fewer layers than stages was not folded
    planned = ready(model, inputs, arguments, folded=folded).model.graph
    model, inputs = _in_double(model, inputs)
    readied = ready(model, inputs, replace(arguments, mixed_precision=None), folded=folded)
    absent = next((name for name in readied.model.parameters if name not in plan.fingerprint.parameters), None)
    if absent is not None:
        raise MismatchError(f"parameter {absent} is not one of the plan's: it was made for another model")
    count = microbatches(plan)
    inner = Mesh(tuple(axis for axis in mesh.axes if axis[0] != PIPELINE_AXIS))
    pricing = Pricing(
        mesh=with_time(inner, count), cluster=arguments.cluster, profile=arguments.profile,
        groups=axis_groups(mesh.axes, arguments.cluster), uneven=bool(plan.shares),
    )  # fmt: skip
    conversions = Conversions(pricing)
    moved = transfer(plan, readied.model, planned, conversions)
    program = lower(readied.model, moved.assignment, conversions, count)
    if plan.shares and mesh.world_size > 1:
        program = uneven(program, smaller_shares(mesh, count))
    if drop is not None:
        program = without_collective(program, drop)
    pipeline = _pipeline(plan, program, mesh)
    device_mesh = init_device_mesh("cpu", tuple(size for _, size in mesh.axes), mesh_dim_names=mesh.names)
    constants, own = readied.traced.constants, tensors_of(model)

    def here(name: str) -> Tensor:
        return constants[name] if name in constants else own(name)

    whole = of_rank_0(here, torch.device("cpu"))
    parallel = ParallelModule(
        program, device_mesh, whole, names=names_of(model), training=model.training, pipeline=pipeline
    )
    part = parallel.shard_inputs(inputs)
    loss = parallel.train_step(**part) if isinstance(part, dict) else parallel.train_step(*part)
    found = parallel.full_gradients()
    if rank == 0:
        tolerance = SINGLE if _computes_in_single(readied.traced.graph) else EXACT
        alone = _alone_by_hash(readied, arguments, inputs, here) if draws(program) else None
        expected_loss, expected = alone or _alone(model, inputs, loss_fn)
        compare({"loss": loss.double()}, {"loss": expected_loss.double()}, tol=tolerance, what="loss")
        worst = compare(found, expected, tol=tolerance, what="gradient")
        say(Verified(
            mesh=dict(mesh.axes), num_microbatches=count, placed=moved.placed, operations=moved.total,
            gradients=len(expected), worst=worst, tolerance=tolerance,
        ))  # fmt: skip


def _pipeline(plan: Plan, program: Program, mesh: Mesh) -> Pipeline | None:
    """The plan's schedule on as many stages of each rank, cut evenly."""
    places = mesh.size(PIPELINE_AXIS)
    if plan.schedule is None or places == 1:
        return None
    loops = (len(plan.stages) + 1) // plan.mesh[PIPELINE_AXIS]
    return Pipeline(mesh=mesh, schedule=plan.schedule, stages=cut(program, even_marks(program, places * loops)))


def _in_double(model: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A real copy in float64, no parameter zero: a zero bias would hide what happens to it."""
    values = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
    if any(isinstance(value, Tensor) and value.is_meta for value in values):
        raise UsageError("verification computes: give example inputs that are real tensors, not on meta")
    real = copy.deepcopy(model)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        tensors = tensors_of(model)
        real = real.to_empty(device="cpu")
        with torch.no_grad():
            for name, tensor in (*real.named_parameters(), *real.named_buffers()):
                tensor.copy_(tensors(name))
    real.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in real.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise * (0.1 if parameter.dim() < 2 else 0.02))
    if hasattr(real, "config") and hasattr(real.config, "use_cache"):
        real.config.use_cache = False
    for module in real.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_experts_implementation", None) is not None:  # transformers' default takes no float64
            config._experts_implementation = "eager"
    if isinstance(inputs, Mapping):
        return real, {name: _double(value) for name, value in inputs.items()}
    return real, tuple(_double(value) for value in inputs)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _computes_in_single(graph: Graph) -> bool:
    return any(value.type.dtype in ("f32", "f16", "bf16") for node in graph.nodes for value in node.results)


def _alone_by_hash(
    readied: Readied, arguments: Arguments, inputs: Any, whole: Callable[[str], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the program for one device: a model that draws is compared with the same draws."""
    alone = check(cluster="1x1xCPU", optimizer=arguments.optimizer, loss_fn=arguments.loss_fn, rng=arguments.rng)
    program = find_plan(readied, alone)[1]
    given = inputs if isinstance(inputs, Mapping) else dict(zip(inputs_of(program), inputs, strict=False))
    found = simulate(program, given, {p.fqn: whole(p.fqn) for p in program.parameters})
    assert found.loss is not None
    return found.loss, {name: gradient for name, gradient in found.gradients.items() if bool(gradient.any())}


def _alone(model: nn.Module, inputs: Any, loss_fn: Loss | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the model as it is."""
    given = dict(inputs) if isinstance(inputs, Mapping) else inputs
    target: Tensor | None = None
    loss: Any
    if loss_fn is not None:
        target = given.pop("target") if isinstance(given, dict) else given[-1]
        given = given if isinstance(given, dict) else given[:-1]
    output = model(**given) if isinstance(given, dict) else model(*given)
    if loss_fn is not None:
        assert target is not None
        loss = loss_fn(output, target)
    elif isinstance(output, Tensor):
        loss = output
    else:
        loss = output["loss"] if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise UnsupportedError("the model returns no loss; give verify a loss_fn")
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
