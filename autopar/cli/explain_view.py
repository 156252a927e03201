"""Why a plan is as it is, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.plan_placements import shown
from autopar.cli.tables import pairs, percent, seconds, section, size, table
from autopar.explaining import Choice, Explained
from autopar.ir.constraints import Constraint
from autopar.ir.plan import Plan
from autopar.passes.found import Tried

MOST_MESHES = 12


def mesh_rows(plan: Plan, tried: Sequence[Tried]) -> list[dict[str, Any]]:
    """Each mesh with the least time that a plan on it can take, and that of the best plan found on it."""
    return [
        {
            "mesh": dict(each.full.axes), "schedule": each.schedule, "num_microbatches": each.microbatches,
            "lower_bound_s": each.bound_ns / 1e9,
            "objective_s": None if each.objective_ns is None else each.objective_ns / 1e9,
            "chosen": is_chosen(plan, each), **({"shares": "unequal"} if each.uneven else {}),
        }
        for each in tried
    ]  # fmt: skip


def whole(plan: Plan, tried: Sequence[Tried]) -> Iterator[RenderableType]:
    """What the plan's time and memory consist of, and the meshes that lost."""
    parts, peak = plan.step_time_s, max(plan.memory.peak_bytes)
    shares = {"compute": parts.compute, "exposed communication": parts.exposed_comm, "pipeline bubble": parts.bubble}
    largest = max(shares, key=lambda name: shares[name])
    share, filled = shares[largest] / (plan.objective_s or 1), peak / (plan.memory.budget_bytes or 1)
    yield Text.assemble(("Why ", "bold"), (plan.model, "bold cyan"), (" is planned so", "bold"))
    yield pairs([
        ("step time", f"{seconds(plan.objective_s)}, {percent(share)} of it {largest}"),
        ("lower bound", f"{seconds(plan.lower_bound_s)}, gap {percent(plan.gap)}"),
        ("memory", f"{size(peak)} of {size(plan.memory.budget_bytes)}, {percent(filled)}"),
    ])  # fmt: skip
    rows = [
        (
            " × ".join(f"{axis} {n}" for axis, n in each.full.axes), each.schedule or "",
            f"{each.microbatches}{', unequal' if each.uneven else ''}",
            seconds(each.bound_ns / 1e9), slower(each.bound_ns / 1e9, plan.objective_s), _verdict(plan, each),
        )
        for each in tried[:MOST_MESHES]
    ]  # fmt: skip
    columns = ("mesh", "schedule", ">microbatches", ">at least", ">against the plan", "")
    title = f"Meshes, of {len(tried)} the {len(rows)} that could be fastest"
    yield section(title, table(columns, rows))


def parameter(plan: Plan, found: Explained) -> RenderableType:
    """A parameter: how it is placed, the runner-up, and all other ways with what forces them."""
    layers = f", {found.count} alike" if found.count > 1 else ""
    rows = [
        (
            _way(choice), "" if choice.objective_s is None else seconds(choice.objective_s),
            "" if choice.objective_s is None else slower(choice.objective_s, found.objective_s),
            choice.why if choice.objective_s is None else _on(choice),
        )
        for choice in found.others
    ]  # fmt: skip
    second = found.runner_up
    best = "nothing else is possible" if second is None else (
        f"{_way(second)}: {seconds(second.objective_s or 0)}, {slower(second.objective_s or 0, found.objective_s)}; "
        f"forced by {second.options()}"
    )  # fmt: skip
    return section(
        f"{found.parameter}  {found.type}{layers}",
        pairs([
            ("as used", shown(found.used)), ("as kept", shown(found.kept)),
            ("step time", seconds(found.objective_s)), ("runner-up", best),
        ]),
        table(("other ways", ">step time", ">against the plan", "on mesh"), rows, wide="on mesh"),
    )  # fmt: skip


def _way(choice: Choice) -> str:
    constraint = Constraint.parse(choice.constraint)
    return "whole" if constraint.axis is None else f"split in dim {constraint.dim} over {constraint.axis}"


def _on(choice: Choice) -> str:
    return " × ".join(f"{axis} {n}" for axis, n in (choice.found or {}).items())


def slower(time_s: float, than_s: float) -> str:
    """How a time stands to another, in words."""
    share = time_s / than_s - 1 if than_s else 0.0
    return "the same" if not share else f"{percent(abs(share))} {'slower' if share > 0 else 'faster'}"


def is_chosen(plan: Plan, each: Tried) -> bool:
    """Whether the plan is on this mesh, with this schedule and such shares."""
    same = dict(each.full.axes) == dict(plan.mesh) and each.full.names == plan.axes
    return same and each.schedule == plan.schedule and each.uneven == bool(plan.shares)


def _verdict(plan: Plan, each: Tried) -> str:
    if is_chosen(plan, each):
        return "chosen"
    if each.objective_ns is not None:
        return f"best found {seconds(each.objective_ns / 1e9)}"
    return "ruled out by its bound" if each.bound_ns / 1e9 >= plan.objective_s else "not ruled out"
