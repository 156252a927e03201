"""``autopar run``: torchrun with the plan handed over in ``AUTOPAR_PLAN``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from autopar.cli import options
from autopar.ir.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from autopar.ir.plan import Plan

PLAN_VARIABLE = "AUTOPAR_PLAN"
# The script's own options must reach the script, so the first word that is not an option of ours ends ours.
SETTINGS = {"allow_interspersed_args": False}

PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", metavar="PLAN", help="Used where the script gives no plan.", show_default=False),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        metavar="N",
        min=1,
        help="Processes on this machine; default: as many as the plan has devices.",
        show_default=False,
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT ARGS",
        help="A script and its arguments; or -- and all that torchrun takes.",
        show_default=False,
    ),
]


def run(
    words: Words = None, plan: PlanOption = None, nproc: Processes = None, debug: options.Debug = False
) -> int:
    """Run a training script under torchrun, with the plan handed over.

    On this machine: autopar run --plan plan.json train.py --lr 3e-4. On several, with torchrun's own
    options after --: autopar run --plan plan.json -- --nnodes=2 --nproc-per-node=8
    --rdzv-endpoint=HOST train.py
    """
    words = list(words or ())
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    loaded = None
    if plan is not None:
        from autopar.ir.plan import Plan

        loaded = Plan.load(plan)
        environment[PLAN_VARIABLE] = str(plan.resolve())
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun_words(words, nproc, loaded)]
    return _passed_through(command, environment)


def torchrun_words(words: Sequence[str], nproc: int | None, plan: Plan | None) -> list[str]:
    """What follows ``torchrun``. Raises ``UsageError``, or ``MismatchError`` if the plan has other ranks."""
    if not any(not word.startswith("-") for word in words):
        raise UsageError("no script to run; write autopar run --nproc N script.py ARGS")
    if words[0].startswith("-"):
        if nproc is not None:
            raise UsageError(
                "--nproc and torchrun options exclude each other; write -- --nproc-per-node=N ..."
            )
        return list(words)
    if not Path(words[0]).is_file():
        raise UsageError(f"{words[0]}: no such script", details={"script": words[0]})
    return ["--standalone", f"--nproc-per-node={_processes(nproc, plan)}", *words]


def _processes(nproc: int | None, plan: Plan | None) -> int:
    """Processes to start on this machine."""
    if plan is None:
        if nproc is None:
            raise UsageError("how many processes? give --nproc N, or a plan that says so")
        return nproc
    if nproc not in (None, plan.world_size):
        raise MismatchError(
            f"the plan is for {plan.world_size} devices, --nproc is {nproc}; "
            f"leave --nproc out, or make a plan for {nproc} devices",
            details={"world_size": plan.world_size, "nproc": nproc},
        )
    from autopar.cost_model import Cluster

    nodes = Cluster.from_dict(plan.cluster).num_nodes
    if nproc is None and nodes > 1:
        raise UsageError(
            f"the plan is for {nodes} nodes: on each of them give torchrun's options, as in "
            f"autopar run --plan PLAN -- --nnodes={nodes} --rdzv-endpoint=HOST ... script.py",
            details={"nodes": nodes},
        )
    return plan.world_size


def _passed_through(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run to the end and return the exit code; signals reach the child, which ends its own processes."""
    child = subprocess.Popen(command, env=environment)

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    before = signal.signal(signal.SIGTERM, forward)
    interrupted = False
    try:
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:  # the terminal has sent it to the child, too
                interrupted = True
    finally:
        signal.signal(signal.SIGTERM, before)
    if interrupted:
        raise KeyboardInterrupt
    return code if code >= 0 else 128 - code
