"""``autopar show PLAN``: a saved plan as tables."""

from __future__ import annotations

from autopar.cli import options
from autopar.cli.output import print_json


def show(path: options.PlanFile, as_json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Print a saved plan: mesh, memory, step time, placements, collectives."""
    from autopar.ir.plan import Plan

    plan = Plan.load(path)
    if as_json:
        print_json(plan.document())
        return
    from autopar.cli.plan_view import show_plan

    show_plan(plan, path=path)
