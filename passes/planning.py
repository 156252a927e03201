"""A search's result as a ``Plan``: data that the runtime, the command line and a reader need."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autopar.ir.graph import SOURCES, Graph
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.plan import (
    BlockInfo,
    Fingerprint,
    GraphInfo,
    Memory,
    Plan,
    ProfileInfo,
    RecipeInfo,
    StepTime,
)
from autopar.ir.plan_origin import Asked
from autopar.ir.program import DATA_AXIS, RNG_INPUT, Program
from autopar.ir.registry import REGISTERED, described
from autopar.ir.text import print_graph
from autopar.ir.types import TensorType
from autopar.passes.account import collectives, compute_ns, islands, placed, priced, updates_ns, used_layout, work
from autopar.passes.assignment import Assignment, Variant, to_plan
from autopar.passes.build import Model
from autopar.passes.candidate import Mode
from autopar.passes.early import without_time
from autopar.passes.found import Found
from autopar.passes.hybrid import kept_texts
from autopar.passes.memory import memory
from autopar.passes.origin import origin_of
from autopar.passes.patterns import patterns
from autopar.passes.positions import all_graphs
from autopar.passes.stage_account import place_collectives, stage_infos


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for, as far as the plan records it."""

    name: str
    mixed_precision: str | None
    memory_bytes: int
    tied: tuple[tuple[str, ...], ...]
    graph_nodes: int
    rng: str = "exact"
    asked: Asked | None = None
    recipes: Mapping[str, RecipeInfo] = field(default_factory=dict)


def fingerprint(model: Model, tied: tuple[tuple[str, ...], ...]) -> Fingerprint:
    """What a plan must be run with: the graph (without names), parameters, ties, inputs."""
    text = print_graph(model.graph)
    return Fingerprint(
        graph_sha256=hashlib.sha256(text.encode()).hexdigest(),
        parameters={fqn: str(TensorType(p.dtype, p.shape)) for fqn, p in sorted(model.parameters.items())},
        inputs={name: str(node.result.type) for node in model.graph.sources("input")
                if (name := str(node.attr("name"))) != RNG_INPUT},
        tied=tied, rules=registered_rules(model),
    )  # fmt: skip


def registered_rules(model: Model) -> dict[str, str]:
    """The rules of users by which this model is planned."""
    targets = {node.target for part in all_graphs(model.graph) for node in part.nodes}
    return {target: described(REGISTERED[target]) for target in sorted(targets & REGISTERED.keys())}


def make_plan(model: Model, found: Found, assignment: Assignment, program: Program, request: Request) -> Plan:
    """Requires: ``program`` is the lowering of ``assignment``, which is ``found``'s."""
    paced = found.paced
    items = list(work(model, assignment, found.pricing, found.microbatches if paced is None else paced.count))
    objective_ns, bubble_ns, share = found.objective_ns, 0, 1
    peaks, parts = memory(model, found, program)
    if found.pipeline is not None:
        bubble_ns, share = found.pipeline[1].bubble_ns, found.pipeline[0].places
    compute = compute_ns(items, found.pricing) + updates_ns(
        program, model.settings, found.pricing, found.microbatches
    )
    compute = min(compute // share, objective_ns - bubble_ns)
    gap = (objective_ns - found.bound_ns) / objective_ns if objective_ns else 0.0
    used, kept = _placements(model, assignment, program, found.mesh)
    modes = _modes(model, assignment)
    cluster, profile = found.pricing.cluster, found.pricing.profile
    return Plan(
        model=request.name, cluster=cluster.to_dict(), world_size=cluster.world_size,
        objective_s=objective_ns / 1e9, lower_bound_s=found.bound_ns / 1e9, gap=gap, proven_optimal=gap <= 1e-6,
        status="optimal" if gap <= 1e-6 else "feasible" if found.complete else "time limit",
        mesh=dict(found.full.axes), axes=found.full.names, num_microbatches=found.microbatches,
        shares={} if paced is None else {DATA_AXIS: paced.shares},
        schedule=found.pipeline[0].schedule if found.pipeline else None,
        stages=stage_infos(program, found.pipeline[1].marks) if found.pipeline else (),
        optimizer=model.settings.optimizer,
        mixed_precision=request.mixed_precision, rng=request.rng,
        zero={name: mode.zero for name, mode in modes.items()},
        hsdp={name: dict(mode.inside) for name, mode in modes.items() if mode.inside},
        recompute={name: mode.recompute for name, mode in modes.items()},
        step_time_s=StepTime(
            compute=compute / 1e9, exposed_comm=(objective_ns - bubble_ns - compute) / 1e9, bubble=bubble_ns / 1e9
        ),
        memory=Memory(budget_bytes=request.memory_bytes, peak_bytes=peaks, parts=parts),
        blocks=tuple(
            BlockInfo(name=block.name, count=_calls(model.graph, block.name), nodes=_operations(block))
            for block in model.graph.blocks
        ),
        graph=GraphInfo(
            nodes=request.graph_nodes,
            folded_nodes=_operations(model.graph) + sum(map(_operations, model.graph.blocks)),
        ),
        placements=used, storage=kept, islands=islands(items),
        collectives=collectives(program) if not found.pipeline else place_collectives(program, *found.pipeline),
        profile=ProfileInfo(name=profile.name, sha256=profile.sha256, priced=priced(items, found.pricing)),
        fingerprint=fingerprint(model, request.tied), assignment=to_plan(assignment), asked=request.asked,
        origin=origin_of(model), recipes=dict(request.recipes),
        search={
            "solve_evaluations": found.evaluations, "candidates": found.candidates, "variables": found.variables,
        },
    )  # fmt: skip


def _operations(graph: Graph) -> int:
    return sum(node.target not in (*SOURCES, "call") for node in graph.nodes)


def _calls(graph: Graph, block: str) -> int:
    return sum(
        int(str(n.attr("count"))) for n in graph.nodes if n.target == "call" and n.attr("block") == block
    )


def _modes(model: Model, assignment: Assignment) -> dict[str, Mode]:
    """Modes of the root ("") and of each block; runs that differ count from 0."""
    found = {"": replace(assignment.main.mode, recompute="none")}
    for graph, variant, count in placed(model, assignment):
        if graph is not model.graph:
            name = graph.name
            if found.get(name, variant.mode) != variant.mode:
                name = f"{name} (×{count})"
            found[name] = variant.mode
    return found


def _placements(
    model: Model, assignment: Assignment, program: Program, mesh: Mesh
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Parameters as used and as kept, equal names of repeated layers written once with ``*``."""
    @functools.cache
    def texts(layout: Layout) -> dict[str, str]:
        return {axis: layout.axis_text(axis) for axis in mesh.names}

    used: dict[str, dict[str, str]] = {}
    for fqn, layout in _used(model, assignment).items():
        used[fqn] = {axis: text.replace("R*", "R") for axis, text in texts(layout).items()}
    kept = {}
    levels = _levels(model, assignment)
    for parameter in program.parameters:
        if parameter.fqn in used:
            level = levels.get(parameter.fqn, assignment.main.mode.zero)
            cut = kept_texts(parameter, dict(mesh.axes)) if level else {}
            kept[parameter.fqn] = {**texts(parameter.layout), **cut}
    return patterns(used), patterns(kept)


def _levels(model: Model, assignment: Assignment) -> dict[str, int]:
    found = {}
    for names, variant in _instances(model, assignment):
        found.update(dict.fromkeys(names.values(), variant.mode.zero))
    return found


def _instances(model: Model, assignment: Assignment) -> list[tuple[dict[int, str], Variant]]:
    """(slot → name, variant) of every call of every block."""
    found = []
    for node in model.graph.nodes:
        if node.target != "call":
            continue
        params = node.attr("params")
        assert isinstance(params, tuple)
        runs = [v for repeat, v in assignment.calls[node.results[0].name] for _ in range(repeat)]
        for names, variant in zip(params, runs, strict=True):
            assert isinstance(names, tuple)
            found.append(({slot: str(name) for slot, name in enumerate(names)}, variant))
    return found


def _used(model: Model, assignment: Assignment) -> Mapping[str, Layout]:
    found: dict[str, Layout] = {}
    seen: dict[tuple[str, int], dict[int, Layout]] = {}
    for node in model.graph.sources("param"):
        layout = used_layout(assignment.main, model.graph, node.result.name)
        if layout is not None:
            found[str(node.attr("fqn"))] = without_time(layout)
    for names, variant in _instances(model, assignment):
        block = model.graph.block(variant.graph)
        key = (variant.graph, id(variant))
        if key not in seen:
            seen[key] = {
                int(str(node.attr("slot"))): without_time(layout)
                for node in block.sources("param")
                if (layout := used_layout(variant, block, node.result.name)) is not None
            }
        found.update({names[slot]: layout for slot, layout in seen[key].items()})
    return found
