"""Two plans side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.output import stdout
from autopar.cli.plan_collectives import PHASES
from autopar.cli.tables import percent, seconds, section, size, table
from autopar.differing import Amount, Differences

MOST = 12


def show_differences(found: Differences, names: tuple[str, str]) -> None:
    """Print on stdout what two plans do differently. ``names``: what their columns are called."""
    for part in _parts(found, names):
        stdout().print(part)


def _parts(found: Differences, names: tuple[str, str]) -> Iterator[RenderableType]:
    if found.same:
        yield Text("The plans do the same.")
    tables = {
        "What differs": found.settings, "Parameters as used": found.placements, "Parameters as kept": found.storage,
    }  # fmt: skip
    for title, rows in tables.items():
        if rows:
            yield section(title, table(("", *names), [(row.what, row.left, row.right) for row in rows], wide=names[1]))
    yield section("Step time", _amounts(found.time_s, names, seconds))
    yield section("Memory per device", _amounts(found.memory_bytes, names, lambda n: size(round(n))))
    if found.traffic:
        rows_shown = [
            (
                f"{t.kind} over {t.axis}, {PHASES.get(t.phase, t.phase)}", size(t.left_bytes), size(t.right_bytes),
                _signed(t.right_s - t.left_s, seconds),
            )
            for t in found.traffic[:MOST]
        ]  # fmt: skip
        columns = ("collectives", *(f">{name}" for name in names), ">time")
        yield section("Payload per device and step, and its time, hidden or not", table(columns, rows_shown))


def _amounts(rows: Sequence[Amount], names: tuple[str, str], shown: Callable[[float], str]) -> RenderableType:
    made = [
        (
            row.what if number == 0 else f"  {row.what}", shown(row.left), shown(row.right),
            _signed(row.right - row.left, shown), percent(row.right / row.left - 1) if row.left else "",
        )
        for number, row in enumerate(rows)
    ]  # fmt: skip
    return table(("part", *(f">{name}" for name in names), ">change", ">"), made)


def _signed(change: float, shown: Callable[[float], str]) -> str:
    return "0" if not change else f"{'+' if change > 0 else '−'}{shown(abs(change))}"


