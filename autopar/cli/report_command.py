"""``autopar report PLAN -o plan.html``: a plan as one page with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli import options
from autopar.cli.output import check_writable, note, progress, write_atomic
from autopar.cli.parse import parse_time_limit_s

Page = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.", show_default=False)]


def report(
    path: options.PlanFile,
    output: Page,
    profile: options.ProfileSpec = None,
    time_limit: options.TimeLimit = "60s",
    debug: options.Debug = False,
) -> None:
    """Write one self-contained page: mesh, placements, memory, timeline, and what lost by how much.

    The alternatives are searched again; --time-limit ends that search, and what it had no time for is not ruled out.
    """
    from autopar.ir.plan import Plan
    from autopar.report.page import need_jinja

    check_writable(output)
    limit_s = parse_time_limit_s(time_limit)
    need_jinja()
    plan = Plan.load(path)
    timeline = tried = None
    if plan.asked is not None and plan.origin is not None:
        with progress(f"simulating a step of {plan.model}"):
            from autopar.cost_model import simulator
            from autopar.replay import program_of

            program, pipeline, asked = program_of(plan, profile=profile)
            timeline = simulator.simulate(
                program, asked.cluster, asked.profile, optimizer=plan.optimizer, pipeline=pipeline
            )
        with progress("searching again for what lost") as say:
            from autopar.explaining import meshes

            tried = meshes(plan, profile=profile, time_limit=limit_s, progress=say)
    else:
        note("the plan holds no graph, since an older version of autopar wrote it: no timeline, no alternatives")
    from autopar.report import build, render

    write_atomic(output, render(build(plan, timeline, tried)).encode())
    note(f"saved {output}")
