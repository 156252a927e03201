"""A step's time by what it is spent on: as the plan's objective counts it, and as it was simulated."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cli.simulate_view import signed
from autopar.cli.tables import percent, seconds
from autopar.cost_model.simulator import Comparison, Timeline
from autopar.ir.plan import Plan
from autopar.report.bars import Part, bar
from autopar.report.svg import Svg

KINDS = (("compute", "compute"), ("exposed", "exposed communication"), ("bubble", "pipeline bubble"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """``parts``: (category, words, time, share) of compute, exposed communication and bubble."""

    label: str
    total: str
    parts: tuple[tuple[str, str, str, str], ...]
    drawing: Svg


@dataclass(frozen=True, kw_only=True)
class Split:
    """``causes``: (part, plan, simulated, difference) of what the two count differently."""

    rows: tuple[Row, ...]
    causes: tuple[tuple[str, str, str, str], ...]
    difference: str


def split(plan: Plan, timeline: Timeline | None, found: Comparison | None) -> Split:
    """Of the simulated places, the mean. Without a timeline the plan alone."""
    own = plan.step_time_s
    times = [("plan", (own.compute, own.exposed_comm, own.bubble))]
    if timeline is not None:
        busy = sum(sum(place.busy_s.values()) for place in timeline.places)
        exposed = sum(place.exposed_s for place in timeline.places)
        bubble = sum(place.bubble_s for place in timeline.places)
        count = len(timeline.places)
        times.append(("simulator", (busy / count, exposed / count, bubble / count)))
    longest = max(sum(parts) for _, parts in times) or 1.0
    causes: tuple[tuple[str, str, str, str], ...] = ()
    difference = ""
    if found is not None:
        rows = [row for row in found.rows if row.objective_s or row.simulated_s]
        causes = tuple(
            (row.part, seconds(row.objective_s), seconds(row.simulated_s), signed(row.difference_s)) for row in rows
        )
        share = found.difference_s / found.objective_s if found.objective_s else 0.0
        difference = f"{signed(found.difference_s)} ({percent(abs(share))} {'less' if share < 0 else 'more'})"
    return Split(
        rows=tuple(_row(label, parts, longest) for label, parts in times), causes=causes, difference=difference
    )


def _row(label: str, parts: tuple[float, ...], longest: float) -> Row:
    total = sum(parts)
    shown = tuple(
        (kind, words, seconds(time), percent(time / (total or 1.0)))
        for (kind, words), time in zip(KINDS, parts, strict=True)
    )
    drawn = [
        Part(share=time / longest, kind=kind, title=f"{words}: {seconds(time)}")
        for (kind, words), time in zip(KINDS, parts, strict=True)
    ]
    said = ", ".join(part.title for part in drawn)
    return Row(label=label, total=seconds(total), parts=shown, drawing=bar(f"{label}: {said}", drawn))
