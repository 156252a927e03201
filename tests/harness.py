"""Run a function on N local processes that form a gloo group, with a timeout.

Processes are forked from a server that has imported once what most tests need, so a run costs a fraction of a
second. The function is looked up by its module, its arguments are pickled, and its results come back through
``torch.save``. A process that fails or hangs fails the run with the tracebacks of all that failed.

Starting processes costs more than most of what tests do in them: ``each`` does several pieces of work in one set.
"""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autopar.errors import AutoparError

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([
    "torch", "torch.distributed.tensor", "torch.distributed.fsdp", "autopar.api",
    "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama",
])  # fmt: skip


# A function and its arguments.
Work = tuple[Callable[..., Any], tuple[Any, ...]]


class RunError(AssertionError):
    """A process raised, died or hung; the message holds every traceback."""


def run_processes(
    world_size: int, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0, **kwargs: Any
) -> list[Any]:
    """``function(*args, **kwargs)`` on every rank of a fresh gloo group; the results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        readers: list[Connection] = []
        processes = []
        for rank in range(world_size):
            _crash(store, rank).touch()
            reader, writer = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_process,
                args=(rank, world_size, store, timeout_s, writer, function, args, kwargs),
                daemon=True,
            )
            process.start()
            writer.close()
            readers.append(reader)
            processes.append(process)
        try:
            return _collect(readers, time.monotonic() + timeout_s, store)
        finally:
            for process in processes:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()


def each(work: Sequence[Work]) -> list[Any]:
    """The results in order; an exception is told in which piece of work it was raised."""
    found = []
    for function, args in work:
        try:
            found.append(function(*args))
        except BaseException as error:
            shown = [str(arg) for arg in args if not isinstance(arg, bytes)]
            error.add_note(f"in {function.__name__} {' '.join(shown)}")
            raise
    return found


def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """What autopar says to this call, or "accepted"."""
    try:
        function(*args, **kwargs)
    except AutoparError as error:
        return str(error)
    return "accepted"


def _collect(readers: list[Connection], deadline: float, store: str) -> list[Any]:
    answers: dict[int, tuple[bool, Any]] = {}
    pending = {reader: rank for rank, reader in enumerate(readers)}
    while pending and (left := deadline - time.monotonic()) > 0:
        for reader in wait(list(pending), timeout=left):
            assert isinstance(reader, Connection)
            rank = pending.pop(reader)
            try:
                answers[rank] = reader.recv()
            except EOFError:
                answers[rank] = (False, f"died without a word\n{_crash(store, rank).read_text()}")
        if any(not good for good, _ in answers.values()):
            deadline = min(deadline, time.monotonic() + 3)  # the others hang in a collective
    failed = {rank: what for rank, (good, what) in answers.items() if not good}
    hung = sorted(pending.values())
    if failed or hung:
        parts = [f"rank {rank}: {what}" for rank, what in sorted(failed.items())]
        raise RunError("\n".join([*parts, *([f"ranks {hung} did not finish"] if hung else [])]))
    return [torch.load(io.BytesIO(answers[rank][1]), weights_only=False) for rank in range(len(readers))]


def _crash(store: str, rank: int) -> Path:
    """Where a process that a signal ends tells what its threads were at."""
    return Path(f"{store}.{rank}")


def _process(
    rank: int,
    world_size: int,
    store: str,
    timeout_s: float,
    writer: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    faulthandler.enable(_crash(store, rank).open("w"))
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch's own, about torch's own
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        result = function(*args, **kwargs)
        held = io.BytesIO()
        torch.save(result, held)
        writer.send((True, held.getvalue()))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 — whatever ends a process is the parent's to report
        writer.send((False, traceback.format_exc()))
        os._exit(1)
