"""What one rank cannot run, no rank runs: a wrong input on one rank is an error on all, before any collective.

Without it the other ranks would wait in a collective for the one that raised. The ranks agree on the host, so
no device is waited for: one reduction of one number over gloo a call (docs/decisions/0012).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from autopar.ir.errors import UsageError

T = TypeVar("T")
MAX_TEXT_BYTES = 2**16


class Unanimous:
    """All ranks of the default group. Making one is a collective."""

    def __init__(self) -> None:
        self._world = dist.get_world_size() if dist.is_initialized() else 1
        backend = str(dist.get_backend()) if self._world > 1 else ""
        only_devices = "nccl" in backend and "gloo" not in backend
        self.group = dist.new_group(backend="gloo") if only_devices else None  # None: the default group

    def run(self, prepare: Callable[[], T], call: str = "") -> T:
        """``prepare()``, which is no collective, if it succeeds on every rank; else every rank raises.

        A rank on which it failed raises its own error, the others UsageError with the rank and the words of the
        first that failed. ``call`` says what is to run then: UsageError if ranks do not say the same. A collective.
        """
        problem: Exception | None = None
        try:
            made = prepare()
        except Exception as error:  # noqa: BLE001 — whatever it is, no other rank may be left waiting
            problem = error
        failed, alike = self._first_that_failed(problem, call)
        if failed is not None:
            text = self._told(failed, str(problem))
            raise problem or UsageError(f"rank {failed}: {text}", details={"rank": failed})
        if not alike:
            raise UsageError(f"rank {dist.get_rank()} runs {call}, another rank something else; all run the same")
        return made

    def _first_that_failed(self, problem: Exception | None, call: str) -> tuple[int | None, bool]:
        """The first rank with a problem, and whether ``call`` is the same on all."""
        if self._world == 1:
            return None if problem is None else 0, True
        mine = self._world if problem is None else dist.get_rank()
        code = zlib.crc32(call.encode())
        first, least, most = torch.tensor([mine, code, -code], dtype=torch.int64), 1, 2
        dist.all_reduce(first, op=dist.ReduceOp.MIN, group=self.group)
        alike = int(first[least]) == -int(first[most])
        return None if int(first[0]) == self._world else int(first[0]), alike

    def _told(self, rank: int, text: str) -> str:
        """The text of ``rank`` on every rank."""
        if self._world == 1:
            return text
        data = text.encode()[:MAX_TEXT_BYTES]
        size = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(size, src=rank, group=self.group)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if rank == dist.get_rank():
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(buffer, src=rank, group=self.group)
        return bytes(buffer.tolist()).decode(errors="replace")
