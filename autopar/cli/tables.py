"""Small parts that the tables are made of: headings, grids, bars and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopar.cost_model.units import format_bytes, format_duration

Cell = str | Text
BAR_WIDTH = 20
_ORIGIN = re.compile(r"(?:built-in )?(.+), line (\d+)(?: \((.+)\))?", re.DOTALL)


def section(title: str, *content: RenderableType) -> Group:
    """A heading with what stands under it, set off by a blank line."""
    return Group(Text(), Text(title, style="bold"), *content)


def pairs(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Names and values side by side; long values wrap under themselves."""
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(f"  {name}", value)
    return grid


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, wide: str = "") -> Table:
    """A table whose columns take what they need; those named in ``wide`` fold, numbers stand right.

    A column whose name starts with ``>`` is a column of numbers.
    """
    made = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="cyan"
    )
    for name in columns:
        right = name.startswith(">")
        made.add_column(
            name.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
            ratio=1 if name == wide else None,
        )
    for row in rows:
        made.add_row(*row)
    return made


def short_origin(text: str) -> str:
    """``built-in hardware.toml, line 12 (source 1)`` as ``hardware.toml:12, source 1``."""
    return _ORIGIN.sub(
        lambda match: f"{Path(match[1]).name}:{match[2]}" + (f", {match[3]}" if match[3] else ""), text
    )


def bar(share: float) -> Text:
    """A share of 1 as a bar; more than 1 fills it."""
    filled = round(min(max(share, 0.0), 1.0) * BAR_WIDTH)
    return Text("█" * filled, style="green" if share <= 1 else "red") + Text(
        "░" * (BAR_WIDTH - filled), style="dim"
    )


def size(size_bytes: int) -> str:
    """Bytes in decimal units; zero is a plain 0."""
    return format_bytes(size_bytes) if size_bytes else "0"


def seconds(duration_s: float) -> str:
    """A duration with its unit; zero is a plain 0."""
    return format_duration(duration_s) if duration_s else "0"


def percent(share: float) -> str:
    """A share of 1 in percent; what is not zero never looks like it."""
    if share and abs(share) < 0.0005:
        return "< 0.1 %"
    return f"{share:.1%}".replace("%", " %")
