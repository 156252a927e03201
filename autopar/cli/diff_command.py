"""``autopar diff A B``: what two plans do differently and what each difference costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli import options
from autopar.cli.output import print_json

Left = Annotated[Path, typer.Argument(metavar="A", help="A plan's file.", show_default=False)]
Right = Annotated[Path, typer.Argument(metavar="B", help="Another plan's file.", show_default=False)]


def diff(
    left: Left,
    right: Right,
    profile: options.ProfileSpec = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Compare two plans: what they decide, place and keep differently, and what that costs in time and memory."""
    from autopar.cost_model import load_profile
    from autopar.differing import differences
    from autopar.ir.plan import Plan

    found = differences(Plan.load(left), Plan.load(right), load_profile(profile))
    if as_json:
        print_json({"left": str(left), "right": str(right), **found.document()})
        return
    from autopar.cli.diff_view import show_differences

    show_differences(found, (left.name, right.name))
