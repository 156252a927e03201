"""``plan`` and ``parallelize``: what a user calls."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from autopar.annotations import annotated
from autopar.arguments import Arguments, check
from autopar.both_modes import OtherMode
from autopar.compiling import Readied, ready
from autopar.cost_model import Cluster
from autopar.finding import check_fit as fits
from autopar.finding import find_plan, lower_plan, pipeline_of
from autopar.hardware import local_device, running_cluster, start_process_group
from autopar.ir.constraints import Constraint
from autopar.ir.errors import AutoparError, MismatchError
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.passes.padding import padding_of
from autopar.passes.randomness import refuse_random
from autopar.runtime.agreement import agree, of_rank_0, share
from autopar.runtime.compiled import warn_of_recomputation
from autopar.runtime.initialise import is_meta, tensors_of
from autopar.runtime.module import ParallelModule
from autopar.runtime.parameters import names_of
from autopar.zoo.published import origins_of

__all__ = ["check_fit", "parallelize", "plan"]

PLAN_VARIABLE = "AUTOPAR_PLAN"


def plan(
    model: nn.Module, example_inputs: Any, *, cluster: str | Path | Cluster | None = None, recipes: bool = False,
    **options: Any,
) -> Plan:  # fmt: skip
    """Find the fastest way to train ``model`` on ``cluster``; needs no process group and no GPU.

    ``recipes``: price the standard recipes beside it, which takes several times as long, and take one that is faster.

    Takes the arguments of ``parallelize`` except ``plan`` and ``compile``. ``cluster=None`` is the running
    process group, or this device alone. Raises the errors of ``autopar.errors``.
    """
    constraints = annotated(model, options.pop("constraints", ()))
    arguments = check(
        cluster=_default_cluster() if cluster is None else cluster, constraints=constraints, **options
    )
    found, _ = find_plan(ready(model, example_inputs, arguments), arguments, compare=recipes)
    return found


def check_fit(found: Plan, model: nn.Module, example_inputs: Any, *, loss_fn: Callable[..., Any] | None = None) -> None:
    """Raise MismatchError with the difference if ``found`` was not made for this model and these inputs."""
    arguments = _arguments_of(found, loss_fn)
    fits(ready(model, example_inputs, arguments), found)


def parallelize(
    model: nn.Module, example_inputs: Any, *, cluster: str | Path | Cluster | None = None, profile: Any = None,
    mesh: Mapping[str, int] | None = None, plan: Plan | str | Path | None = None, constraints: Sequence[Any] = (),
    memory_budget: int | str | None = None, optimizer: str = "adamw", mixed_precision: str | None = None,
    num_microbatches: int | None = None, schedule: str | None = None, zero: int | None = None,
    recompute: str | None = None, loss_fn: Callable[..., Any] | None = None, compile: bool | str = False,
    rng: str = "exact", time_limit: float = 60.0, like: str | None = None,
) -> ParallelModule:  # fmt: skip
    """Plan ``model`` for the running processes, rewrite it into a sharded program, and return that as a module.

    Collective: every rank calls it with the same model and arguments. Rank 0 searches (or reads ``plan``,
    or the file in AUTOPAR_PLAN), all ranks run its plan. ``model`` may be on meta; then its own
    initialiser fills the parameters, shard by shard. ``compile``: torch.compile each distinct block once; a text
    names the backend, such as "aot_eager" where there is no C++ compiler. ``like``: a standard recipe, such as
    "megatron", whose plan is made instead of searching freely. Raises the errors of ``autopar.errors`` on
    every rank.
    """
    device = start_process_group()
    given = plan if plan is not None else os.environ.get(PLAN_VARIABLE) or None
    arguments: Arguments | None = None
    readied: Readied | None = None
    outcome: bytes | Exception | None = None
    try:
        loaded = given if isinstance(given, Plan) or given is None else Plan.load(given)
        if loaded is not None:
            arguments = _arguments_of(loaded, loss_fn)
        else:
            arguments = check(
                cluster=cluster or running_cluster(device), profile=profile, mesh=mesh,
                constraints=annotated(model, constraints),
                memory_budget=memory_budget, optimizer=optimizer, mixed_precision=mixed_precision,
                num_microbatches=num_microbatches, schedule=schedule, zero=zero, recompute=recompute, loss_fn=loss_fn,
                rng=rng, time_limit=time_limit, like=like, name=type(model).__name__,
            )  # fmt: skip
        _check_world(arguments.cluster)
        readied = ready(model, example_inputs, arguments)
        if dist.get_world_size() > 1:
            refuse_random(readied.model.graph)
        if dist.get_rank() == 0:
            outcome = (loaded or find_plan(readied, arguments)[0]).to_bytes()
    except Exception as error:  # noqa: BLE001 — whatever it is, no other rank may be left waiting
        outcome = error
    data = share(_told(outcome) if isinstance(outcome, Exception) else outcome, device)
    made = _assemble(model, example_inputs, data, readied, arguments, outcome, compile=compile)
    del readied
    # what is left of the trace refers to the model in cycles: its weights would stay until chance collects them
    gc.collect()
    return made


def _assemble(
    model: nn.Module,
    example_inputs: Any,
    data: bytes,
    readied: Readied | None,
    arguments: Arguments | None,
    outcome: object,
    *,
    compile: bool | str,
) -> ParallelModule:
    """Lower the agreed plan here. A rank that failed to trace takes the others down with its own message."""
    device = start_process_group()
    program: Program | None = None
    other: OtherMode | None = None
    problem = outcome if isinstance(outcome, Exception) else None
    found = Plan.from_bytes(data, where="plan of rank 0")
    if problem is None and readied is not None and arguments is not None:
        try:
            program, assignment = lower_plan(readied, found, arguments)
            other = OtherMode(model, example_inputs, arguments, readied, assignment, program, found)
        except Exception as error:  # noqa: BLE001 — as above
            problem = error
    try:
        agree("ready" if problem is None else "failed", "the state", device)
    except MismatchError:
        raise problem or MismatchError("another rank could not prepare the model; see its message") from None
    if problem is not None or program is None or readied is None:
        raise problem or MismatchError("the model could not be prepared")
    agree(found.sha256, "the plan", device)
    if dist.get_rank() == 0:
        warn_of_recomputation(program.recompute, compile, stacklevel=3)  # of whoever called ``parallelize``
    pipeline = pipeline_of(found, program)
    whole_mesh = program.mesh if pipeline is None else pipeline.mesh
    mesh = init_device_mesh(
        device.type, tuple(size for _, size in whole_mesh.axes), mesh_dim_names=whole_mesh.names
    )
    traced = readied.traced
    whole = _with_constants(tensors_of(model), traced.constants)
    return ParallelModule(
        program, mesh, whole if is_meta(model) else of_rank_0(whole, device), names=names_of(model), plan=found,
        restore=traced.out_spec.unflatten, calling=traced.calling, padding=padding_of(readied.model), compile=compile,
        rng_seed=_shared_seed(device), training=model.training, pipeline=pipeline, other_mode=other,
        origins=origins_of(model),
    )  # fmt: skip


def _shared_seed(device: torch.device) -> int:
    """Rank 0's ``torch.initial_seed()`` on every rank. A collective."""
    return int.from_bytes(share(torch.initial_seed().to_bytes(8, "little"), device), "little")


def _told(error: Exception) -> AutoparError:
    """What the other ranks hear of rank 0's error; a defect keeps its traceback there as the cause."""
    if isinstance(error, AutoparError):
        return error
    told = AutoparError(f"unexpected {type(error).__name__} on rank 0: {error}")
    told.__cause__ = error
    return told


def _with_constants(whole: Callable[[str], Any], constants: Mapping[str, Any]) -> Callable[[str], Any]:
    return lambda name: constants[name] if name in constants else whole(name)


def _default_cluster() -> Cluster:
    if dist.is_initialized():
        return running_cluster(start_process_group())
    from autopar.cost_model import NodeGroup
    from autopar.hardware import device_name

    return Cluster(nodes=(NodeGroup(count=1, gpus=1, device=device_name(local_device())),))


def _check_world(cluster: Cluster) -> None:
    if cluster.world_size != dist.get_world_size():
        raise MismatchError(
            f"the plan is for {cluster.world_size} devices, {dist.get_world_size()} processes are running; "
            f"start {cluster.world_size} processes or plan for {dist.get_world_size()}"
        )


def _arguments_of(found: Plan, loss_fn: Callable[..., Any] | None) -> Arguments:
    """The arguments that a plan was made with, as far as lowering needs them."""
    return check(
        cluster=Cluster.from_dict(found.cluster), optimizer=found.optimizer, mixed_precision=found.mixed_precision,
        memory_budget=found.memory.budget_bytes, loss_fn=loss_fn, name=found.model, rng=found.rng, mesh=found.mesh,
        schedule=found.schedule,
        constraints=() if found.asked is None else tuple(map(Constraint.parse, found.asked.constraints)),
    )  # fmt: skip
