"""The other meshes: what the search knows of each, and how far from the plan that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.cli.explain_view import is_chosen, slower
from autopar.cli.tables import seconds
from autopar.ir.plan import Plan
from autopar.passes.found import Tried
from autopar.report.axes import mesh_text
from autopar.report.bars import axis, span
from autopar.report.svg import Svg

# Of each verdict; the others are folded away, and counted beyond the most.
SHOWN, MOST = 6, 150
CHOSEN, LOST, NEAR, OPEN, OUT = (
    "chosen", "searched, ruled out", "searched, not ruled out", "not searched in time", "ruled out by a bound",
)  # fmt: skip
KINDS = {CHOSEN: "plan", LOST: "searched", NEAR: "searched", OPEN: "open", OUT: "ruled-out"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """``against``: of its best plan, or at least so far from this plan."""

    mesh: str
    schedule: str
    microbatches: int
    bound: str
    best: str
    against: str
    verdict: str
    drawing: Svg


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    summary: str
    shown: tuple[Row, ...]
    folded: tuple[Row, ...]
    left_out: int
    axis: Svg


def alternatives(plan: Plan, tried: Sequence[Tried]) -> Alternatives:
    """Chosen first, then the fastest that were searched, what was not ruled out, and what was."""
    order = list(KINDS)
    ranked = sorted(tried, key=lambda each: (
        order.index(_verdict(plan, each)), _best_ns(each), each.full.axes, each.schedule or "",
    ))  # fmt: skip
    plan_ns = plan.objective_s * 1e9
    low = min([plan_ns, *(each.bound_ns for each in tried)])
    slowest = max([0, *(each.objective_ns for each in tried if each.objective_ns is not None)])
    low, high = low - 0.05 * (plan_ns - low), min(max(1.25 * plan_ns, 1.02 * slowest), 2 * plan_ns)
    counts = {name: sum(_verdict(plan, each) == name for each in tried) for name in order}
    rows = [(_verdict(plan, each), _row(plan, each, low, high)) for each in ranked]
    shown: list[Row] = []
    folded: list[Row] = []
    seen = dict.fromkeys(order, 0)
    for verdict, row in rows:
        seen[verdict] += 1
        (shown if seen[verdict] <= SHOWN else folded).append(row)
    at = (plan_ns - low) / (high - low)
    ticks = [(0.0, seconds(low / 1e9)), (at, seconds(plan.objective_s)), (1.0, seconds(high / 1e9))]
    return Alternatives(
        summary=_summary(len(tried), counts), shown=tuple(shown), folded=tuple(folded[:MOST]),
        left_out=max(0, len(folded) - MOST),
        axis=axis([tick for tick in ticks if tick[0] == at or abs(tick[0] - at) > 0.35]),
    )  # fmt: skip


def _row(plan: Plan, each: Tried, low: float, high: float) -> Row:
    verdict, width = _verdict(plan, each), high - low or 1.0
    best_ns, plan_ns = each.objective_ns, plan.objective_s * 1e9
    known = each.bound_ns if best_ns is None else best_ns
    against = "the plan" if verdict == CHOSEN else _against(known / 1e9, plan, found=best_ns is not None)
    mesh = mesh_text(list(each.full.axes))
    words = f"{mesh}: at least {seconds(each.bound_ns / 1e9)}" + (f", best {seconds(best_ns / 1e9)}" if best_ns else "")
    return Row(
        mesh=mesh, schedule=each.schedule or "–", microbatches=each.microbatches, bound=seconds(each.bound_ns / 1e9),
        best="–" if best_ns is None else seconds(best_ns / 1e9), against=against, verdict=verdict,
        drawing=span(
            words, (each.bound_ns - low) / width, None if best_ns is None else (best_ns - low) / width,
            mark=(plan_ns - low) / width, kind=KINDS[verdict],
        ),
    )  # fmt: skip


def _against(time_s: float, plan: Plan, *, found: bool) -> str:
    limit = "" if found else "at least " if time_s > plan.objective_s else "at most "
    return limit + slower(time_s, plan.objective_s)


def _verdict(plan: Plan, each: Tried) -> str:
    if is_chosen(plan, each):
        return CHOSEN
    excluded = each.bound_ns / 1e9 >= plan.objective_s
    if each.objective_ns is not None:
        return LOST if excluded else NEAR
    return OUT if excluded else OPEN


def _best_ns(each: Tried) -> int:
    return each.bound_ns if each.objective_ns is None else each.objective_ns


def _summary(total: int, counts: dict[str, int]) -> str:
    said = [f"{count} {name}" for name, count in counts.items() if count]
    return f"{f'{total} meshes with their schedules' if total != 1 else 'One mesh'}: {'; '.join(said)}."
