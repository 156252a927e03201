"""``autopar simulate PLAN``: a step of the plan's program, event by event, beside what the plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli import options
from autopar.cli.output import check_writable, note, print_json, progress, write_atomic

TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Save the timeline, for Perfetto or chrome://tracing.", show_default=False
    ),
]


def simulate(
    path: options.PlanFile, trace: TraceFile = None, as_json: options.AsJson = False, debug: options.Debug = False
) -> None:
    """Simulate a step: time beside the plan's, what the difference is made of, what each place waits for."""
    from autopar.ir.plan import Plan

    if trace is not None:
        check_writable(trace, option="--trace")
    plan = Plan.load(path)
    with progress(f"rebuilding the program of {plan.model}"):
        from autopar.cost_model import simulator
        from autopar.replay import program_of  # type: ignore[import-not-found, unused-ignore]

        program, pipeline, cluster, profile = program_of(plan)
    with progress("simulating a step"):
        timeline = simulator.simulate(program, cluster, profile, optimizer=plan.optimizer, pipeline=pipeline)
    found = simulator.compare(timeline, plan)
    if trace is not None:
        write_atomic(trace, simulator.trace_bytes(timeline))
        note(f"saved {trace}")
    if as_json:
        print_json(simulator.document(timeline, found) | {"plan_sha256": plan.sha256})
        return
    from autopar.cli.simulate_view import show_simulation

    show_simulation(plan, timeline, found)
