"""The standard recipes beside a plan: what each takes, and by how much the plan is faster."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from autopar.cli.tables import seconds, section, table
from autopar.ir.plan import RECIPE_NAMES, Plan, RecipeInfo


def recipes(plan: Plan) -> RenderableType:
    """A row for each recipe, in a fixed order."""
    rows = [
        (
            name,
            "" if found.objective_s is None else seconds(found.objective_s),
            "" if not found.objective_s else f"{found.objective_s / plan.objective_s:.2f}×",
            "" if found.late else "yes" if found.fits else "no",
            _told(found),
        )
        for name in RECIPE_NAMES if (found := plan.recipes.get(name)) is not None
    ]  # fmt: skip
    columns = ("recipe", ">time", ">of the plan's", "fits", "how, or why not")
    return section("Standard recipes", Text(f"  {plan.compared()}"), table(columns, rows, wide="how, or why not"))


def _told(found: RecipeInfo) -> str:
    mesh = " × ".join(f"{axis} {size}" for axis, size in found.axes)
    how = f"{mesh}, {found.num_microbatches} microbatch(es)" if mesh else ""
    return found.why or how
