"""Where each parameter is: as the work uses it, and as it is kept between steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.tables import section, table
from autopar.ir.plan import Plan

_REPEATED = re.compile(r"[*\[\]{}]|^\d")
WHOLE = "R"


def placements(plan: Plan) -> RenderableType:
    """One row a parameter pattern, grouped by the repeated block that it is in."""
    rows: list[tuple[str | Text, str | Text, str | Text]] = []
    for group in placed_groups(plan):
        if group.title:
            rows.append((Text(group.title, style="bold"), "", ""))
        for name, members in group.parts:
            used, kept = plan.placements.get(members[0], {}), plan.storage.get(members[0], {})
            rows.append((f"  {name}" if group.title else name, shown(used), _kept(used, kept)))
    legend = "  tp:S(0) is split along dim 0 over mesh axis tp; R is whole on every device"
    if plan.hsdp:
        legend += "; in 8s: among 8 neighbours, with a copy in every such group"
    columns = ("parameter", "as used", "as kept")
    return section("Placements", Text(legend, style="dim"), table(columns, rows, wide="parameter"))


@dataclass(frozen=True)
class PlacedGroup:
    """Parameters of one repeated block, or of layers that are placed alike: ``model.layers.0-13, 66-79``.

    ``parts``: each parameter's name inside its layer, and its patterns in all of them. ``title``: empty outside blocks.
    """

    title: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]


def placed_groups(plan: Plan) -> tuple[PlacedGroup, ...]:
    """Outside blocks first, then by name, layers in the order of their numbers."""
    blocks: dict[str, list[str]] = {}
    for name in sorted({*plan.placements, *plan.storage}):
        blocks.setdefault(block_of(name), []).append(name)
    alike: dict[tuple[object, ...], list[str]] = {}
    for block in sorted(blocks, key=_by_number):
        head, _, last = block.rpartition(".")
        inside = tuple(
            (_inside(name, block), _frozen(plan.placements, name), _frozen(plan.storage, name))
            for name in blocks[block]
        )
        alike.setdefault((head, inside) if last.isdigit() else (block,), []).append(block)
    return tuple(
        PlacedGroup(
            title=_title(same),
            parts=tuple(
                (_inside(names[0], same[0]), names) for names in zip(*(blocks[block] for block in same), strict=True)
            ),
        )
        for same in alike.values()
    )


def _by_number(block: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in block.split(".")]


def _inside(name: str, block: str) -> str:
    return name[len(block) + 1 :] if block else name


def _frozen(placed: Mapping[str, Mapping[str, str]], name: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(placed.get(name, {}).items()))


def _title(blocks: Sequence[str]) -> str:
    """One block by its name, several by the runs of their numbers."""
    if len(blocks) == 1:
        return blocks[0]
    runs: list[list[int]] = []
    for number in (int(block.rpartition(".")[2]) for block in blocks):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{blocks[0].rpartition('.')[0]}.{texts}"


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


def _kept(used: Mapping[str, str], kept: Mapping[str, str]) -> Text:
    return Text("the same", style="dim") if used == kept else shown(kept)
