"""A plan as tables: what it costs, what it needs, and how everything is placed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.output import stdout, warn
from autopar.cli.plan_collectives import collectives
from autopar.cli.plan_placements import placements
from autopar.cli.plan_pricing import pricing
from autopar.cli.plan_recipes import recipes
from autopar.cli.tables import bar, pairs, percent, seconds, section, size, table
from autopar.cost_model import Cluster
from autopar.ir.plan import Plan

REST = "rest of the model"


def show_plan(plan: Plan, *, path: Path | None = None) -> None:
    """Print ``plan`` on stdout, and on stderr what its reader should know before using it."""
    console = stdout()
    for part in _parts(plan, path):
        console.print(part)
    for text in warnings(plan):
        warn(text)


def warnings(plan: Plan) -> Iterator[str]:
    """What may make the plan worse than it looks."""
    if not plan.proven_optimal:
        yield f"not proven optimal ({plan.status}): a plan {percent(plan.gap)} faster may exist"
    share = sum(island.flops_share for island in plan.islands)
    if plan.islands:
        names = ", ".join(island.op for island in plan.islands)
        yield f"{percent(share)} of the work is not divided between devices, for want of a rule: {names}"
    at_peak = sorted(name for name, ways in plan.profile.priced.items() if "peak" in ways)
    if at_peak:
        yield (
            f"priced at the device's peak, for want of a measured efficiency: {', '.join(at_peak)}; "
            f"they may take longer"
        )


def _parts(plan: Plan, path: Path | None) -> Iterator[RenderableType]:
    cluster = Cluster.from_dict(plan.cluster)
    yield Text.assemble(("Plan ", "bold"), (plan.model, "bold cyan"), (" on ", "bold"), (str(cluster), "bold cyan"))
    yield _summary(plan)
    yield _step_time(plan)
    yield _memory(plan)
    if plan.recipes:
        yield recipes(plan)
    yield _blocks(plan)
    yield placements(plan)
    if plan.collectives:
        yield collectives(plan)
    if plan.islands:
        yield _islands(plan)
    yield pricing(plan)
    yield Text()
    hashed = f"sha256 {plan.sha256[:16]}"
    yield Text(f"{path}  {hashed}" if path is not None else hashed, style="dim")


def _summary(plan: Plan) -> RenderableType:
    bound = "proven optimal" if plan.proven_optimal else f"gap {percent(plan.gap)}, {plan.status}"
    mesh = " × ".join(f"{axis} {n}" for axis, n in plan.mesh.items()) or "one device"
    stages = ", ".join(stage.where for stage in plan.stages)
    devices = f"{plan.world_size} device{'s' if plan.world_size != 1 else ''}"
    return pairs([
        ("step time", Text.assemble((seconds(plan.objective_s), "bold"), f"  ({bound})")),
        ("lower bound", f"{seconds(plan.lower_bound_s)}: no plan that the options allow is faster"),
        ("mesh", Text.assemble((mesh, "bold"), f"  ({devices})")),
        ("schedule", plan.schedule or "no pipeline"),
        *([("stages", f"{len(plan.stages) + 1}, cut before {stages}")] if stages else []),
        ("microbatches", _microbatches(plan)),
        ("inputs", ", ".join(f"{name} {text}" for name, text in plan.fingerprint.inputs.items())),
        ("precision", f"mixed, {plan.mixed_precision}" if plan.mixed_precision else "as the model"),
        ("optimizer", plan.optimizer),
        ("graph", f"{plan.graph.nodes} operations, {plan.graph.folded_nodes} after folding repeats"),
    ])  # fmt: skip


def _microbatches(plan: Plan) -> str:
    """How many each rank runs; of unequal shares, those of ranks in order."""
    return f"{plan.num_microbatches} on average: {plan.shares_text}" if plan.shares else str(plan.num_microbatches)


def _step_time(plan: Plan) -> RenderableType:
    parts = plan.step_time_s
    named = {
        "compute": parts.compute,
        "exposed communication": parts.exposed_comm,
        "pipeline bubble": parts.bubble,
    }
    total = sum(named.values()) or 1.0
    rows = [(name, seconds(value), percent(value / total), bar(value / total)) for name, value in named.items()]
    return section("Step time", table(("part", ">time", ">share", ""), rows))


def _memory(plan: Plan) -> RenderableType:
    memory = plan.memory
    budget = memory.budget_bytes or 1
    rows = [
        (
            f"stage {stage}" if len(memory.peak_bytes) > 1 else "peak",
            size(peak),
            percent(peak / budget),
            bar(peak / budget),
        )
        for stage, peak in enumerate(memory.peak_bytes)
    ]
    parts = sorted(memory.parts.items(), key=lambda item: -item[1])
    rows += [(f"  {name.replace('_', ' ')}", size(n), percent(n / budget), Text()) for name, n in parts if n]
    title = f"Memory per device, of {size(memory.budget_bytes)} that may be used"
    return section(title, table(("part", ">size", ">of budget", ""), rows))


def _blocks(plan: Plan) -> RenderableType:
    known = {block.name: block for block in plan.blocks}
    names = dict.fromkeys([*known, *plan.zero, *plan.recompute])
    rows = []
    for name in names:
        block = known.get(name)
        rows.append((
            name or REST,
            str(block.count) if block else "1",
            str(block.nodes) if block else "",
            _zero(plan, name),
            plan.recompute.get(name, ""),
        ))  # fmt: skip
    return section("Blocks", table(("block", ">count", ">operations", ">ZeRO", "recompute"), rows))


def _zero(plan: Plan, name: str) -> str:
    """The level, and among how many neighbours parameters are cut where that is not all of them."""
    among = [f"{axis} in {size}s" if size > 1 else f"{axis} whole" for axis, size in plan.hsdp.get(name, {}).items()]
    return ", ".join([str(plan.zero.get(name, "")), *among])


def _islands(plan: Plan) -> RenderableType:
    rows = [(island.op, str(island.count), percent(island.flops_share)) for island in plan.islands]
    title = "Islands: every device does the same work"
    return section(title, table(("operation", ">count", ">share of FLOPs"), rows))
