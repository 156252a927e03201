"""What a plan says of its pipeline stages: where they begin, what a place on the pipeline axis holds and sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autopar.ir.pipeline import PIPELINE_AXIS, Mark, Stage
from autopar.ir.plan import Collective, StageInfo
from autopar.ir.program import Parameter, Program
from autopar.passes.account import collectives
from autopar.passes.pipelining import Arrangement, Shape
from autopar.passes.pricing import local_bytes
from autopar.passes.stages import cut
from autopar.passes.tied import Tied, tied

# Bytes of the optimizer's state of one parameter on a device.
StateBytes = Callable[[Parameter], int]


def stage_infos(program: Program, marks: Sequence[Mark]) -> tuple[StageInfo, ...]:
    """The beginning of each stage but the first: a repeated layer by what its parameters have in common."""
    nodes = {node.results[0].name: node for node in program.graph.nodes}
    found = []
    for mark in marks:
        node = nodes[mark.node]
        where = node.source or node.target
        if node.target == "call":
            params = node.attr("params")
            assert isinstance(params, tuple)
            names = params[mark.call]
            assert isinstance(names, tuple)
            where = _common([str(name) for name in names]) or where
        found.append(StageInfo(mark=str(mark), where=where))
    return tuple(found)


def _common(names: Sequence[str]) -> str:
    """The module that all names stand in."""
    parts = [name.split(".")[:-1] for name in names]
    shared: list[str] = []
    for step in zip(*parts, strict=False):
        if len(set(step)) > 1:
            break
        shared.append(step[0])
    return ".".join(shared)


def largest_place(program: Program, cut_at: Arrangement, shape: Shape) -> tuple[Parameter, ...]:
    """Parameters of the place on the pipeline axis that needs most memory."""
    stages = cut(program, cut_at.marks)
    place = cut_at.bytes.index(max(cut_at.bytes))
    own = {p.fqn: p for stage in stages[place :: shape.places] for p in stage.program.parameters}
    return tuple(own.values())


def copies_bytes(stages: Sequence[Stage], shape: Shape, state_bytes: StateBytes) -> tuple[int, ...]:
    """What each place holds of parameters that an earlier stage holds too: the units count them once."""
    seen: set[str] = set()
    found = [0] * shape.places
    for index, stage in enumerate(stages):
        for parameter in stage.program.parameters:
            if parameter.fqn in seen:
                size = local_bytes(parameter.layout, parameter.type)
                trained = size + state_bytes(parameter) if parameter.trainable else 0
                found[index % shape.places] += size + trained
        seen.update(parameter.fqn for parameter in stage.program.parameters)
    return tuple(found)


def place_collectives(program: Program, shape: Shape, cut_at: Arrangement) -> tuple[Collective, ...]:
    """What a device of the place that communicates most does in a step."""
    stages = cut(program, cut_at.marks)
    shared = tied(program, stages, shape)
    by_place = [
        _of_place(stages[place :: shape.places], [one for one in shared if place in one.places])
        for place in range(shape.places)
    ]
    return max(by_place, key=lambda found: sum(entry.bytes * entry.count for entry in found))


def _of_place(stages: Sequence[Stage], shared: Sequence[Tied]) -> tuple[Collective, ...]:
    found: dict[tuple[str, str, int, str, str], int] = {}
    for stage in stages:
        for entry in (*collectives(stage.program, piped=True), *_transfers(stage)):
            key = (entry.kind, entry.axis, entry.bytes, entry.where, entry.phase)
            found[key] = found.get(key, 0) + entry.count
    for one in shared:
        key = ("all_reduce", PIPELINE_AXIS, one.bytes, "main", "grad")
        found[key] = found.get(key, 0) + 1
    return tuple(
        Collective(kind=kind, axis=axis, bytes=size, count=count, where=where, phase=phase)  # type: ignore[arg-type]
        for (kind, axis, size, where, phase), count in found.items()
    )


def _transfers(stage: Stage) -> list[Collective]:
    """Activations to the next stage, their gradients to the one before."""
    values = stage.program.graph.values()
    made = []
    for names, phase in ((stage.sends, "forward"), (stage.receives, "backward")):
        kinds = [values[name] for name in names]
        size = sum(
            local_bytes(value.layout, value.type) for value in kinds
            if value.layout is not None and (phase == "forward" or value.type.dtype.startswith(("f", "bf")))
        )  # fmt: skip
        if size:
            made.append(Collective(
                kind="send", axis=PIPELINE_AXIS, bytes=size, count=stage.program.microbatches,
                where=stage.program.graph.name, phase=phase,  # type: ignore[arg-type]
            ))  # fmt: skip
    return made
