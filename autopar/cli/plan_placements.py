"""Where each parameter is: as the work uses it, and as it is kept between steps."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.tables import section, table
from autopar.ir.plan import Plan

_REPEATED = re.compile(r"[*\[\]{}]|^\d")
WHOLE = "R"


def placements(plan: Plan) -> RenderableType:
    """One row a parameter pattern, grouped by the repeated block that it is in."""
    rows: list[tuple[str | Text, str | Text, str | Text]] = []
    heading = ""
    for name in sorted({*plan.placements, *plan.storage}, key=lambda name: (block_of(name), name)):
        block = block_of(name)
        if block != heading:
            rows.append((Text(block, style="bold"), "", ""))
            heading = block
        used, kept = plan.placements.get(name, {}), plan.storage.get(name, {})
        rows.append((_indented(name, block), shown(used), _kept(used, kept)))
    legend = "  tp:S(0) is split along dim 0 over mesh axis tp; R is whole on every device"
    if plan.hsdp:
        legend += "; in 8s: among 8 neighbours, with a copy in every such group"
    columns = ("parameter", "as used", "as kept")
    return section("Placements", Text(legend, style="dim"), table(columns, rows, wide="parameter"))


def block_of(name: str) -> str:
    """The part of a pattern through its last repeated segment: ``model.layers.*``; empty outside blocks."""
    parts = name.split(".")
    repeated = [i for i, part in enumerate(parts) if _REPEATED.search(part)]
    return ".".join(parts[: repeated[-1] + 1]) if repeated else ""


def shown(choices: Mapping[str, str]) -> Text:
    """``tp:S(0)``: the axes on which a parameter is not whole, else ``R``."""
    split = {axis: placement for axis, placement in choices.items() if placement != WHOLE}
    if not split:
        return Text(WHOLE, style="dim")
    return Text(" ").join(
        Text.assemble((f"{axis}:", "dim"), (placement, "green")) for axis, placement in split.items()
    )


def _indented(name: str, block: str) -> str:
    return f"  {name[len(block) + 1 :]}" if block else name


def _kept(used: Mapping[str, str], kept: Mapping[str, str]) -> Text:
    return Text("the same", style="dim") if used == kept else shown(kept)
