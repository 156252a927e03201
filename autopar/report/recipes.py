"""The plan beside the standard recipes, where it was compared with them."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cli.tables import seconds
from autopar.ir.plan import Plan
from autopar.report.axes import mesh_text
from autopar.report.bars import Part, bar
from autopar.report.svg import Svg

COUNTS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``objective_s`` is None where it cannot be placed; ``why`` says what is missing. ``mesh``: as text, if known."""

    name: str
    objective_s: float | None
    fits: bool
    why: str
    mesh: str


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    time: str
    ratio: str
    drawing: Svg
    note: str
    own: bool


def recipes_of(plan: Plan) -> tuple[Recipe, ...]:
    """The fastest first, what does not fit last. Plans that were compared with none have none."""
    kept = getattr(plan, "recipes", None) or {}
    found = []
    for name, each in kept.items():
        sizes = getattr(each, "mesh", None)
        found.append(Recipe(
            name=name, objective_s=each.objective_s, fits=each.fits, why=getattr(each, "why", ""),
            mesh=mesh_text(list(sizes.items())) if sizes else "",
        ))  # fmt: skip
    return tuple(sorted(found, key=lambda r: (not r.fits, r.objective_s is None, r.objective_s or 0.0, r.name)))


def compared(plan: Plan) -> str:
    """How the plan stands to the recipes, in words; empty without recipes."""
    found = recipes_of(plan)
    if not found:
        return ""
    all_of_them = f"{COUNTS.get(len(found), len(found))} standard recipe{'s' * (len(found) != 1)}"
    best = next((each for each in found if each.fits and each.objective_s is not None), None)
    if best is None or best.objective_s is None:
        return f"none of the {all_of_them} fits"
    ratio = best.objective_s / plan.objective_s if plan.objective_s else 1.0
    stands = f"{ratio:.2f}× faster than" if ratio > 1 else f"{1 / ratio:.2f}× slower than"
    return f"{'as fast as' if '1.00×' in stands else stands} the best of {all_of_them} ({best.name})"


def recipe_rows(plan: Plan) -> tuple[Row, ...]:
    """The plan first; bars are times, the longest fills the width."""
    found = recipes_of(plan)
    if not found:
        return ()
    longest = max([plan.objective_s, *(each.objective_s or 0.0 for each in found)]) or 1.0
    rows = [_row("this plan", plan.objective_s, plan.objective_s, longest, kind="plan", note="", own=True)]
    for each in found:
        note = each.why or each.mesh if each.fits else f"does not fit{f': {each.why}' if each.why else ''}"
        kind = "recipe" if each.fits else "unfit"
        rows.append(_row(each.name, each.objective_s, plan.objective_s, longest, kind=kind, note=note, own=False))
    return tuple(rows)


def _row(name: str, time_s: float | None, plan_s: float, longest_s: float, *, kind: str, note: str, own: bool) -> Row:
    time = "–" if time_s is None else seconds(time_s)
    parts = [] if time_s is None else [Part(share=time_s / longest_s, kind=kind, title=f"{name}: {time}")]
    return Row(
        name=name, time=time, ratio="" if time_s is None or own or not plan_s else f"{time_s / plan_s:.2f}×",
        drawing=bar(f"{name}: {time}", parts), note=note, own=own,
    )  # fmt: skip
