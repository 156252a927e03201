"""All that a page shows, worked out: the template only lays it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.cost_model.simulator import Comparison, Timeline, compare
from autopar.ir.plan import Plan
from autopar.passes.found import Tried
from autopar.report.alternatives import Alternatives, alternatives
from autopar.report.blocks import Block, Stage, blocks, stages
from autopar.report.headline import Headline, headline
from autopar.report.machines import Machines, machines
from autopar.report.memory import Memory, memory
from autopar.report.parameters import Group, groups
from autopar.report.recipes import Row as RecipeRow
from autopar.report.recipes import recipe_rows
from autopar.report.split import Split, split
from autopar.report.timeline import Drawn, drawn


@dataclass(frozen=True, kw_only=True)
class View:
    """``timeline`` and ``alternatives`` are None for a plan that does not keep the graph it was made from."""

    headline: Headline
    machines: Machines
    blocks: tuple[Block, ...]
    stages: tuple[Stage, ...]
    parameters: tuple[Group, ...]
    memory: Memory
    timeline: Drawn | None
    split: Split
    recipes: tuple[RecipeRow, ...]
    alternatives: Alternatives | None


def build(plan: Plan, timeline: Timeline | None = None, tried: Sequence[Tried] | None = None) -> View:
    """``timeline``: of the plan's program; ``tried``: as ``explaining.meshes`` gives them."""
    found: Comparison | None = None if timeline is None else compare(timeline, plan)
    return View(
        headline=headline(plan), machines=machines(plan), blocks=blocks(plan), stages=stages(plan),
        parameters=groups(plan), memory=memory(plan), timeline=None if timeline is None else drawn(timeline),
        split=split(plan, timeline, found), recipes=recipe_rows(plan),
        alternatives=None if tried is None else alternatives(plan, tried),
    )  # fmt: skip
