"""A simulated step as tables: beside the plan's, and place by place."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.output import stdout
from autopar.cli.tables import bar, pairs, percent, seconds, section, table
from autopar.cost_model.simulator import Account, Comparison, Timeline
from autopar.ir.plan import Plan


def show_simulation(plan: Plan, timeline: Timeline, found: Comparison) -> None:
    """Print on stdout."""
    console = stdout()
    for part in _parts(plan, timeline, found):
        console.print(part)


def signed(duration_s: float) -> str:
    """A duration with its sign; zero is a plain 0."""
    return f"{'-' if duration_s < 0 else '+'}{seconds(abs(duration_s))}" if duration_s else "0"


def _parts(plan: Plan, timeline: Timeline, found: Comparison) -> Iterator[RenderableType]:
    yield Text.assemble(("Simulated step of ", "bold"), (plan.model, "bold cyan"))
    share = found.difference_s / found.objective_s if found.objective_s else 0.0
    less = "-" if share < 0 else "+"
    yield pairs([
        ("simulated", Text(seconds(found.simulated_s), style="bold")),
        ("the plan's step time", seconds(found.objective_s)),
        ("difference", f"{signed(found.difference_s)} ({less}{percent(abs(share))})"),
    ])  # fmt: skip
    yield _rows(found)
    yield section("Where the time goes", table(*_places(timeline)))


def _rows(found: Comparison) -> RenderableType:
    rows = [
        (row.part, seconds(row.objective_s), seconds(row.simulated_s), signed(row.difference_s))
        for row in found.rows if row.objective_s or row.simulated_s
    ]  # fmt: skip
    if found.unexplained_s:
        rows.append(("not explained", signed(-found.unexplained_s), "", signed(found.unexplained_s)))
    return section("What the difference is made of", table(("part", ">plan", ">simulated", ">difference"), rows))


def _places(timeline: Timeline) -> tuple[tuple[str, ...], list[tuple[str | Text, ...]]]:
    parts = ("computing", "gradients, optimizer", "waiting for communication", "waiting for places")
    columns = ("place", *(f">{part}" for part in parts), ">busy", "")
    rows: list[tuple[str | Text, ...]] = []
    for account in timeline.places:
        times = _split(account)
        busy = (times[0] + times[1]) / timeline.step_s if timeline.step_s else 0.0
        rows.append((str(account.place), *map(seconds, times), percent(busy), bar(busy)))
    return columns, rows


def _split(account: Account) -> tuple[float, float, float, float]:
    once = account.busy_s["grad"] + account.busy_s["optimizer"]
    return sum(account.busy_s.values()) - once, once, account.exposed_s, account.bubble_s
