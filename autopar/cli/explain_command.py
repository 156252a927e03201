"""``autopar explain PLAN [NAME]``: why, what else was possible and what it costs, and what would change the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autopar.cli import options
from autopar.cli.output import check_writable, note, print_json, progress, stdout, write_atomic
from autopar.cli.parse import parse_time_limit_s
from autopar.ir.errors import UsageError

if TYPE_CHECKING:
    from autopar.ir.plan import Plan

Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="A parameter, a pattern, or a module of the model.", show_default=False),
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CHANGE",
        help="memory=+16GiB, bandwidth.inter=100Gb/s, bandwidth.intra=300GB/s, devices=16 or batch=1024; may be "
        "repeated.",
        show_default=False,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The model, where another batch is asked for and the plan's name is none.",
        show_default=False,
    ),
]


def explain(
    path: options.PlanFile,
    name: Name = None,
    what_if: WhatIf = None,
    model: Source = None,
    profile: options.ProfileSpec = None,
    time_limit: options.TimeLimit = "60s",
    output: options.Output = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Why the plan is as it is: the meshes that lost, or of a parameter every other way to use it.

    Each figure is that of a search of its own. With --what-if: the plan under the change, beside this one; -o saves it.
    """
    from autopar.ir.plan import Plan

    if output is not None and not what_if:
        raise UsageError("-o saves the plan that --what-if finds; say what changes")
    if name is not None and what_if:
        raise UsageError("--what-if is asked of a whole plan: leave out NAME")
    plan, limit_s = Plan.load(path), parse_time_limit_s(time_limit)
    if what_if:
        if output is not None:
            check_writable(output)
        with progress(f"searching under {', '.join(what_if)}") as say:
            from autopar.what_if import Change, ask

            changes = [Change.parse(text) for text in what_if]
            made = ask(plan, changes, profile=profile, time_limit=limit_s, model=model, progress=say)
        if output is not None:
            write_atomic(output, made.to_bytes())
            note(f"saved {output}")
        _print_what_if(plan, made, what_if, as_json=as_json)
    elif name is not None:
        with progress(f"trying every other way to use {name}") as say:
            from autopar.explaining import explain as explained

            found = explained(plan, name, profile=profile, time_limit=limit_s, progress=say)
        if as_json:
            print_json({"plan": str(path), "parameters": [each.document() for each in found]})
            return
        from autopar.cli.explain_view import parameter

        for each in found:
            stdout().print(parameter(plan, each))
    else:
        with progress("searching again") as say:
            from autopar.explaining import meshes

            tried = meshes(plan, profile=profile, time_limit=limit_s, progress=say)
        from autopar.cli.explain_view import mesh_rows, whole

        if as_json:
            print_json({"plan": str(path), "objective_s": plan.objective_s, "meshes": mesh_rows(plan, tried)})
            return
        for part in whole(plan, tried):
            stdout().print(part)


def _print_what_if(plan: Plan, made: Plan, changes: list[str], *, as_json: bool) -> None:
    from autopar.differing import differences

    if as_json:
        print_json({"what_if": changes, "before_s": plan.objective_s, "plan": made.document()})
        return
    from autopar.cli.diff_view import show_differences

    show_differences(differences(plan, made), ("now", f"if {', '.join(changes)}"))
