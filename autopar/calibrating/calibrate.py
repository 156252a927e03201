"""``autopar profile calibrate``: processes on this machine's devices measure, and what they found becomes a profile."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Callable

import torch
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from autopar.calibrating.document import Document, document
from autopar.calibrating.measure import Measured, run
from autopar.hardware import known_gpu
from autopar.ir.errors import ProbeError, UsageError
from autopar.passes.cores import usable_cores
from autopar.processes import conversation


def calibrate(
    kind: str | None = None, processes: int | None = None, progress: Callable[[str], None] = lambda what: None
) -> Document:
    """Figures of this machine's devices as the tables of a cost profile, in a minute or two.

    ``kind``: ``cuda`` or ``cpu``; None: GPUs if there are any. ``processes``: one for each GPU or core unless given;
    with one, no link is measured. Raises UsageError for devices that are not there, ProbeError where one fails.
    """
    kind, processes = _devices(kind, processes)
    found: Measured | None = None
    try:
        for said in conversation(run, processes, kind):
            if isinstance(said, Measured):
                found = said
            else:
                progress(str(said))
    except ProcessException as error:
        lost = error.signal_name if isinstance(error, ProcessExitedException) and error.signal_name else "an error"
        raise ProbeError(
            f"measuring process {error.error_index} ended with {lost}, often for want of memory: try fewer with --nproc"
        ) from error
    if found is None:
        raise ProbeError("the measuring processes ended without a result")
    known = "CPU" if kind == "cpu" else known_gpu(found.device)
    name = known or re.sub(r"[^A-Za-z0-9.]+", "-", found.device)
    many = "process" if processes == 1 else f"{processes} processes at once"
    source = f"autopar profile calibrate: {_machine(found, kind)}, torch {torch.__version__}, {many}"
    return document(found, kind, name, known=known is not None, source=source, date=datetime.date.today().isoformat())


def _devices(kind: str | None, processes: int | None) -> tuple[str, int]:
    """What is measured, and by how many processes."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = kind or ("cuda" if gpus else "cpu")
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"device {kind!r}: one of cpu, cuda")
    if kind == "cuda" and not gpus:
        raise UsageError("device cuda: torch sees no GPU here; measure the CPU with cpu")
    there = gpus if kind == "cuda" else usable_cores()
    processes = there if processes is None else processes
    if not 1 <= processes <= there:
        what = "GPUs" if kind == "cuda" else "cores"
        raise UsageError(f"{processes} processes: this machine has {there} {what}, one for each process")
    return kind, processes


def _machine(found: Measured, kind: str) -> str:
    return found.device if kind == "cuda" else f"{platform.machine()} CPU of {os.cpu_count()} cores"
