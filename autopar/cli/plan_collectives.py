"""What is sent between devices in one step, the largest first."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.tables import section, size, table
from autopar.ir.plan import Collective, Plan

MOST = 20
PHASES = {"grad": "gradients"}


def collectives(plan: Plan) -> RenderableType:
    """The largest collectives by bytes a step, and how much is left out."""
    ordered = sorted(plan.collectives, key=lambda found: -total_bytes(found))
    rows = [
        (
            found.kind,
            found.axis,
            PHASES.get(found.phase, found.phase),
            size(found.bytes),
            str(found.count),
            size(total_bytes(found)),
            found.where or "(root)",
        )
        for found in ordered[:MOST]
    ]
    whole = size(sum(map(total_bytes, ordered)))
    columns = ("kind", "axis", "phase", ">bytes", ">× a step", ">= in all", "where")
    parts: list[RenderableType] = [table(columns, rows, wide="where")]
    if len(ordered) > MOST:
        rest = size(sum(map(total_bytes, ordered[MOST:])))
        parts.append(
            Text(f"  and {len(ordered) - MOST} smaller ones, {rest} in all: --json lists them", style="dim")
        )
    return section(f"Collectives: {whole} of payload per device and step", *parts)


def total_bytes(found: Collective) -> int:
    """Payload per rank over one step."""
    return found.bytes * found.count
