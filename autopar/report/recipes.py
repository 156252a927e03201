"""The plan beside the standard recipes, where it was compared with them."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cli.tables import seconds
from autopar.ir.plan import Plan, RecipeInfo
from autopar.report.axes import mesh_text
from autopar.report.bars import Part, bar
from autopar.report.svg import Svg


@dataclass(frozen=True, kw_only=True)
class Row:
    """``note``: how it is set up, or why it does not fit. ``own``: the plan itself."""

    name: str
    time: str
    ratio: str
    drawing: Svg
    note: str
    own: bool


def recipe_rows(plan: Plan) -> tuple[Row, ...]:
    """The plan first, then the fastest, what does not fit last; bars are times, the longest fills the width.

    None for a plan that was compared with no recipe.
    """
    if not plan.recipes:
        return ()
    found = sorted(plan.recipes.items(), key=lambda item: _rank(*item))
    longest = max([plan.objective_s, *(each.objective_s or 0.0 for _, each in found)]) or 1.0
    rows = [_row("this plan", plan.objective_s, plan.objective_s, longest, kind="plan", note=_how(plan), own=True)]
    for name, each in found:
        kind, note = ("recipe", _how(each)) if each.fits else ("unfit", f"does not fit{each.why and f': {each.why}'}")
        rows.append(_row(name, each.objective_s, plan.objective_s, longest, kind=kind, note=note, own=False))
    return tuple(rows)


def _rank(name: str, found: RecipeInfo) -> tuple[bool, bool, float, str]:
    return not found.fits, found.objective_s is None, found.objective_s or 0.0, name


def _how(made: Plan | RecipeInfo) -> str:
    sizes = [(name, made.mesh[name]) for name in made.axes] if isinstance(made, Plan) else list(made.axes)
    if not sizes and not isinstance(made, Plan):
        return ""
    count = made.num_microbatches or 1
    return f"{mesh_text(sizes)}, {count} microbatch{'es' * (count != 1)}"


def _row(name: str, time_s: float | None, plan_s: float, longest_s: float, *, kind: str, note: str, own: bool) -> Row:
    time = "–" if time_s is None else seconds(time_s)
    parts = [] if time_s is None else [Part(share=time_s / longest_s, kind=kind, title=f"{name}: {time}")]
    return Row(
        name=name, time=time, ratio="" if time_s is None or own or not plan_s else f"{time_s / plan_s:.2f}×",
        drawing=bar(f"{name}: {time}", parts), note=note, own=own,
    )  # fmt: skip
