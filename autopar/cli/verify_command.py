"""``autopar verify PLAN MODEL``: the sharded run against the single-device run, on local processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autopar.cli import options
from autopar.cli.output import print_json, progress, stdout

if TYPE_CHECKING:
    from autopar.ir.plan import Plan

Processes = Annotated[int, typer.Option("--nproc", metavar="N", help="Most processes to start on this machine.")]
# For the test that sees verification fail: a switch that makes a plan wrong is not for users.
Drop = Annotated[int | None, typer.Option("--drop-collective", metavar="N", hidden=True)]


def verify(
    path: options.PlanFile,
    model: options.Model,
    nproc: Processes = 4,
    drop: Drop = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Run a plan on local processes at reduced size and compare loss and every gradient with one device.

    Models of the zoo and of hf: become narrow and shallow but divide as before; each axis of the mesh becomes at
    most 2. Exit code 8 names the first tensor that differs.
    """
    from autopar.ir.plan import Plan

    plan = Plan.load(path)
    with progress(f"training {model} on up to {nproc} processes and on one"):
        from autopar.models import Reduced
        from autopar.verifying.verify import verified

        found = verified(Reduced(model, _length(plan)), plan, nproc=nproc, drop=drop)
    if as_json:
        print_json({"plan": str(path), "model": model, **found.document()})
        return
    mesh = " × ".join(f"{axis} {size}" for axis, size in found.mesh.items()) or "one device"
    stdout().print(
        f"{path}: verified on {mesh}, {found.num_microbatches} microbatch(es): the loss and all {found.gradients} "
        f"gradients are those of one device\n"
        f"  largest error {found.worst:.1e}, allowed {found.tolerance:.0e}; {found.placed} of {found.operations} "
        f"operations stand as in the plan, the others follow their operands",
        soft_wrap=True,
    )


def _length(plan: Plan) -> int | None:
    """Positions of the plan's tokens, if it has tokens."""
    shapes = [kind[kind.index("[") + 1 : -1].split(",") for kind in plan.fingerprint.inputs.values() if "i64" in kind]
    return next((int(shape[1]) for shape in shapes if len(shape) > 1), None)
