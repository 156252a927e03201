"""The memory of a plan: what each device holds at most, and what for."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cost_model import optimizer_state_bytes
from autopar.ir.errors import IRError
from autopar.ir.program import Parameter, Program
from autopar.ir.types import TensorType
from autopar.passes.assignment import Assignment
from autopar.passes.build import Encoded, Model
from autopar.passes.candidate import cost_level
from autopar.passes.found import Found
from autopar.passes.hybrid import parts_of
from autopar.passes.peak import Held, ParameterBytes, peak
from autopar.passes.pricing import Pricing
from autopar.passes.solve import Solution
from autopar.passes.solve.check import measure_instance
from autopar.passes.stage_account import largest_place
from autopar.passes.storage import parameter_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """A solution, and the assignment that it stands for, on one mesh."""

    encoded: Encoded
    solution: Solution
    assignment: Assignment
    pricing: Pricing
    microbatches: int


def memory(model: Model, found: Found, program: Program) -> tuple[tuple[int, ...], dict[str, int]]:
    """Peak bytes of each place of the pipeline, or of the one there is, and the parts of the largest."""
    placed = Placed(
        encoded=found.encoded, solution=found.solution, assignment=found.assignment, pricing=found.pricing,
        microbatches=found.microbatches,
    )  # fmt: skip
    if found.pipeline is None:
        parts = walked(model, placed, program)
        return (sum(parts.values()),), parts
    shape, cut_at = found.pipeline
    own = ParameterBytes()
    for parameter in largest_place(program, cut_at, shape):
        own += parameter_parts(model, placed, program, parameter)
    parts = {
        "parameters": own.parameter, "gradients": max(own.before, own.gradient), "optimizer": own.state,
        "copies": own.copy, "transient": own.sent,
    }  # fmt: skip
    return cut_at.bytes, {**parts, "activations": max(0, max(cut_at.bytes) - sum(parts.values()))}


def walked(model: Model, found: Placed, program: Program) -> dict[str, int]:
    """Bytes by what they are for when they are most, where there is no pipeline."""
    by_group = _by_group(model, found, program)
    problem, solution = found.encoded.problem, found.solution
    calls = []
    for chain, node, runs in zip(problem.chains, found.encoded.calls, solution.calls, strict=True):
        measured = [(repeat, measure_instance(chain.segment, one)) for repeat, one in runs]
        values = [one for repeat, one in measured for _ in range(repeat)]
        groups = [f"{node.results[0].name}/{index}" for index in range(len(values))]
        calls += [_held(one, by_group.get(group)) for one, group in zip(values, groups, strict=True)]
    return peak(_held(measure_instance(problem.root, solution.root), by_group.get(""), root=True), calls)


def _by_group(model: Model, found: Placed, program: Program) -> dict[str, ParameterBytes]:
    """What a device holds of the parameters of the root ("") and of each call; those of equal calls are added up once.
    """
    groups: dict[str, list[Parameter]] = {}
    for parameter in program.parameters:
        groups.setdefault(parameter.group, []).append(parameter)
    sums: dict[tuple[object, ...], ParameterBytes] = {}
    keys = {}
    for group, members in groups.items():
        own = ((p.type, p.compute_dtype, p.layout, p.trainable, p.runtime_axes, p.inside) for p in members)
        key = keys[group] = (not group, _level(found, members[0]), *own)
        if key not in sums:
            sums[key] = sum((parameter_parts(model, found, program, p) for p in members), ParameterBytes())
    return {group: sums[key] for group, key in keys.items()}


def parameter_parts(model: Model, found: Placed, program: Program, parameter: Parameter) -> ParameterBytes:
    """What a device holds of one parameter."""
    local = parameter.layout.local_shape(parameter.type.shape)
    whole = TensorType(parameter.type.dtype, local).nbytes
    used = TensorType(parameter.compute_dtype, local).nbytes
    cast = parameter.compute_dtype != parameter.type.dtype
    if not parameter.trainable:
        return ParameterBytes(parameter=whole, copy=used if cast else 0)
    axes, level = parameter.runtime_axes, _level(found, parameter)
    zero = cost_level(level, model.settings) if axes else 0
    parts = parts_of(parameter, program.mesh.size) if zero else 1
    state = optimizer_state_bytes(model.settings.optimizer, local, parameter.type.dtype, found.pricing.profile)
    return parameter_bytes(
        whole, used, state, parts, zero, found.microbatches, owned=bool(axes), root=not parameter.group, cast=cast
    )


def _level(found: Placed, parameter: Parameter) -> int:
    """The ZeRO level of the call that the parameter belongs to, or of the root."""
    call, _, index = parameter.group.rpartition("/")
    if not call:
        return found.assignment.main.mode.zero
    left = int(index)
    for repeat, variant in found.assignment.calls[call]:
        if left < repeat:
            return variant.mode.zero
        left -= repeat
    raise IRError(f"{parameter.fqn}: no call {parameter.group}")


def _held(measured: tuple[int, int, int], known: ParameterBytes | None, *, root: bool = False) -> Held:
    """What the solver's sums count of the root or of a call, parameters apart."""
    _, held, transient = measured
    of = known or ParameterBytes()
    kept, passing = of.summed(root=root)
    return Held(parameters=of, activations=max(0, held - kept), passing=max(0, transient - passing))
