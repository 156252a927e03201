"""Start the processes of the parallel run, pass on what they say, and end them whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

from torch.multiprocessing.spawn import start_processes

from autopar.demo.training import Planned, Step, Task, train_parallel
from autopar.ir.errors import AutoparError

POLL_S = 0.2


def parallel_run(task: Task) -> Generator[Planned | Step, None, None]:
    """Yield the plan, then every step.

    An ``AutoparError`` of the processes is raised here as it is, any other with the process's traceback.
    """
    said: Any = multiprocessing.get_context("spawn").Queue()
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(
            _process, (task, os.path.join(folder, "store"), said), nprocs=task.processes, join=False, daemon=True
        )
        assert context is not None
        try:
            ended = False
            while not ended:
                ended = context.join(timeout=POLL_S)
                yield from _waiting(said)
        finally:
            for process in context.processes:
                process.terminate()
            for process in context.processes:
                process.join()


def _process(rank: int, task: Task, store: str, said: Any) -> None:
    try:
        train_parallel(rank, task, store, said.put)
    except AutoparError as error:  # every rank has the same one
        if rank == 0:
            said.put(error)


def _waiting(said: Any) -> Iterator[Planned | Step]:
    while True:
        try:
            word = said.get(timeout=POLL_S)
        except queue.Empty:
            return
        if isinstance(word, AutoparError):
            raise word
        yield word
