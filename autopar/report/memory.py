"""What each device holds at most, against what it may."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cli.tables import percent, size
from autopar.ir.plan import Plan
from autopar.report.bars import Part, bar
from autopar.report.svg import Svg

# In this order in every bar; others follow by name.
PARTS = ("parameters", "gradients", "optimizer", "copies", "transient", "activations")
WORDS = {
    "optimizer": "optimizer state",
    "copies": "copies in the precision of the work",
    "transient": "gathered or sent for a moment",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """``apart``: the bar shows the parts, which a plan keeps of the fullest place."""

    label: str
    size: str
    share: str
    drawing: Svg
    apart: bool


@dataclass(frozen=True, kw_only=True)
class Memory:
    """``legend``: (category, words, size, share of the budget) of each part."""

    budget: str
    rows: tuple[Row, ...]
    legend: tuple[tuple[str, str, str, str], ...]
    over: bool


def memory(plan: Plan) -> Memory:
    found = plan.memory
    budget, fullest = found.budget_bytes or 1, max(found.peak_bytes, default=0)
    names = [*PARTS, *sorted(name for name in found.parts if name not in PARTS)]
    parts = [(name, found.parts[name]) for name in names if found.parts.get(name)]
    whole = max(budget, fullest, sum(count for _, count in parts))
    rows, told = [], False
    for place, peak in enumerate(found.peak_bytes):
        apart = bool(parts) and peak == fullest and not told
        told = told or apart
        shown = parts if apart else [("held", peak)]
        drawn = [
            Part(share=count / whole, kind=_kind(name), title=f"{_words(name)}: {size(count)}") for name, count in shown
        ]
        label = f"place {place}" if len(found.peak_bytes) > 1 else "each device"
        rows.append(Row(
            label=label, size=size(peak), share=percent(peak / budget), apart=apart,
            drawing=bar(f"{label}: {size(peak)} of {size(budget)}", drawn, mark=budget / whole),
        ))  # fmt: skip
    return Memory(
        budget=size(found.budget_bytes), rows=tuple(rows),
        legend=tuple((_kind(name), _words(name), size(count), percent(count / budget)) for name, count in parts),
        over=sum(count for _, count in parts) > fullest,
    )  # fmt: skip


def _words(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def _kind(name: str) -> str:
    return name if name in PARTS else "held"
