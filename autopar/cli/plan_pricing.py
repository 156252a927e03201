"""Which cost profile priced the plan, and on what grounds each class of operations."""

from __future__ import annotations

from rich.console import RenderableType

from autopar.cli.tables import pairs, section
from autopar.ir.plan import Plan

GROUNDS = {
    "hook": "the profile's Python code",
    "measured_seconds": "measured seconds",
    "curve": "efficiency by size",
    "measured_rate": "measured rate",
    "peak": "peak rate (no figure)",
    "bytes_only": "bytes moved alone",
}


def pricing(plan: Plan) -> RenderableType:
    """The profile and its hash; below, op classes by the way their seconds were found."""
    classes: dict[str, list[str]] = {}
    for name, ways in plan.profile.priced.items():
        for way in ways:
            classes.setdefault(way, []).append(name)
    order = [*GROUNDS, *sorted(classes.keys() - GROUNDS.keys())]
    rows = [(GROUNDS.get(way, way), ", ".join(sorted(classes[way]))) for way in order if way in classes]
    title = f"Prices: cost profile {plan.profile.name} (sha256 {plan.profile.sha256[:12]})"
    return section(title, pairs(rows))
