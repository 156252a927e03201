"""Start local processes that form a gloo group, pass on what they say, and end them whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from autopar.ir.errors import AutoparError

POLL_S = 0.2
STUCK_AFTER = timedelta(minutes=5)

# What a process runs: (rank, say, *arguments).
Entry = Callable[..., None]


def conversation(entry: Entry, processes: int, *arguments: Any) -> Generator[Any, None, None]:
    """Run ``entry(rank, say, *arguments)`` in every process and yield what they say.

    Requires: ``entry`` and ``arguments`` can be pickled. An ``AutoparError`` of rank 0 is raised here as it is,
    any other error with the process's traceback.
    """
    said: Any = multiprocessing.get_context("spawn").Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        context = start_processes(
            _process, (processes, entry, store, said, arguments), nprocs=processes, join=False, daemon=True
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


def _process(rank: int, processes: int, entry: Entry, store: str, said: Any, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.pop("AUTOPAR_PLAN", None)  # somebody's plan for something else
    if any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # works where the host's name does not resolve
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=processes, timeout=STUCK_AFTER
        )
        entry(rank, said.put, *arguments)
        dist.destroy_process_group()
    except AutoparError as error:  # every rank has the same one
        if rank == 0:
            said.put(error)


def _waiting(said: Any) -> Iterator[Any]:
    while True:
        try:
            word = said.get(timeout=POLL_S)
        except queue.Empty:
            return
        if isinstance(word, AutoparError):
            raise word
        yield word
