"""A plan's objective beside the simulated step, and what the difference between the two is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.cost_model.simulator.counted import settled
from autopar.cost_model.simulator.timeline import Timeline
from autopar.ir.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds that one part of a step takes, as the objective counts them and as they were simulated."""

    part: str
    objective_s: float
    simulated_s: float

    @property
    def difference_s(self) -> float:
        return self.simulated_s - self.objective_s


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``rows`` add up to the simulated step; their differences explain that to the objective, but for
    ``unexplained_s``: what the objective is more than its parts, counted anew on the lowered program.
    """

    objective_s: float
    simulated_s: float
    rows: tuple[Row, ...]

    @property
    def difference_s(self) -> float:
        return self.simulated_s - self.objective_s

    @property
    def unexplained_s(self) -> float:
        return sum(row.objective_s for row in self.rows) - self.objective_s

    def causes(self) -> tuple[Row, ...]:
        """Rows in which the two differ, the largest difference first."""
        return tuple(sorted((row for row in self.rows if row.difference_s), key=lambda row: -abs(row.difference_s)))


def compare(timeline: Timeline, plan: Plan) -> Comparison:
    """Requires: the timeline is of the plan's program. In a pipeline, parts are means over its places."""
    return Comparison(
        objective_s=plan.objective_s, simulated_s=timeline.step_s, rows=tuple(_rows(timeline, plan)),
    )  # fmt: skip


def _rows(timeline: Timeline, plan: Plan) -> Iterator[Row]:
    counted = settled(timeline.counted)
    count = len(counted)

    def mean_s(name: str) -> float:
        return float(sum(getattr(each, name) for each in counted)) / count

    computing = timeline.mean_s("busy_s", "forward", "backward", "recompute")
    yield Row(part="computing", objective_s=mean_s("compute_s"), simulated_s=computing)
    for part, name, causes in (
        ("collectives in passes", "collectives_s", ("collectives",)),
        ("parameters gathered, gradients reduced", "parameters_s", ("gathers", "reductions")),
        ("sums at the end of the step", "sums_s", ("sums",)),
    ):
        yield Row(part=part, objective_s=mean_s(name), simulated_s=timeline.mean_s("waits_s", *causes))
    added = timeline.mean_s("busy_s", "grad")
    yield Row(part="gradients accumulated", objective_s=mean_s("added_s"), simulated_s=added)
    yield Row(part="optimizer", objective_s=mean_s("optimizer_s"), simulated_s=timeline.mean_s("busy_s", "optimizer"))
    # the slowest place makes the others wait, for what it does more than they and for the bubble
    more = max(each.total_s for each in counted) - mean_s("total_s")
    yield Row(
        part="waiting for other places", objective_s=plan.step_time_s.bubble + more + mean_s("transfers_s"),
        simulated_s=sum(account.bubble_s for account in timeline.places) / count,
    )  # fmt: skip
