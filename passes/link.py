"""One end of what connects a search and a helper of it."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection


@dataclass(eq=False)
class Link:
    """``pid``: of the helper at the other end, 0 where the search is there."""

    connection: Connection
    pid: int = 0
    _unsent: deque[tuple[object, ...]] = field(default_factory=deque)
    _sent_s: float = 0.0  # since when what is unsent waits, or when the other end last took some of it

    def say(self, message: tuple[object, ...]) -> None:
        """Something more to send."""
        if not self._unsent:
            self._sent_s = time.monotonic()
        self._unsent.append(message)

    def send(self, *, waiting: bool) -> None:
        """What was said and the other end takes now; all of it if ``waiting``."""
        while self._unsent and (waiting or self._takes()):
            with suppress(OSError):  # it is done; what it said may not all have been heard
                self.connection.send(self._unsent.popleft())
            self._sent_s = time.monotonic()

    def is_deaf(self, seconds: float) -> bool:
        """Whether nothing was taken for so long."""
        return bool(self._unsent) and time.monotonic() - self._sent_s > seconds

    def end(self) -> None:
        """End the helper at the other end."""
        if self.pid:
            with suppress(ProcessLookupError, ChildProcessError):  # the caller may wait for all that end
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        self.connection.close()

    def _takes(self) -> bool:
        """Whether a message may be sent without waiting."""
        asked = select.poll()
        asked.register(self.connection.fileno(), select.POLLOUT)
        return bool(asked.poll(0))
