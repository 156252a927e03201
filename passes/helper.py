"""A helper of a search: a copy of its process that works out bounds, or standard recipes, on another core.

It answers what the search would have found itself, and nothing that follows from what was asked before. So whether
there is a helper, and how fast it is, changes nothing but time. Each tells the other what it begins with and what it
finds.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

STUCK_S = 30.0  # no bound takes so long

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A bound, the evaluations it took, whether there is no more to be had, the price of memory (ns a byte), whether
    memory is a matter, and a bound that ignores it."""

    bound_ns: int
    evaluations: int
    exact: bool
    price: float = 0.0
    binds: bool = True
    free_ns: int = 0


class Told(NamedTuple):
    """Of the best plan: its time with its handicap, whether memory costs it time, what a byte was worth last (ns), and
    its time."""

    best_ns: float = 0.0
    binds: bool = False
    price: float = 0.0
    objective_ns: int = 0


class BusyError(Exception):
    """The search is at the same bound itself."""


@dataclass(eq=False)
class Helper:
    """What the other process has found, by what was asked; nothing while there is no other.

    ``here``: whether this is the helper. There ``best`` is what the search has told of its best plan. ``stuck_s``: a
    helper that works on one answer, or does not listen, for so long is given up.
    """

    here: bool = False
    best: Told = field(default_factory=Told)
    stuck_s: float = STUCK_S
    _found: dict[Hashable, Any] = field(default_factory=dict)  # None: to be asked here
    _begun: set[Hashable] = field(default_factory=set)
    _unsent: deque[tuple[object, ...]] = field(default_factory=deque)
    _sent_s: float = 0.0  # since when what is unsent waits, or when the other one last took some of it
    _other: Connection | None = None
    _pid: int = 0

    def start(self, work: Callable[[], None], best: Told) -> None:
        """Let a copy of this process ``work``, where there is a core for it."""
        if self._other or not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2:
            return
        ours, other = Pipe()
        try:
            with warnings.catch_warnings():
                # Other threads are not there in the copy. If one of them holds what it needs it is given up.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:  # no room for another process
            ours.close()
            other.close()
            return
        if pid == 0:
            try:
                ours.close()
                self.here, self.best, self._other = True, best, other
                work()
            except Exception:  # what it found until then is kept
                logging.getLogger(__name__).warning("a helper failed, its search goes on alone", exc_info=True)
            finally:
                os._exit(0)  # nothing that is registered for the end of the process is the helper's to do
        other.close()
        self._pid, self._other, self.best = pid, ours, best

    def stop(self) -> None:
        """End the helper."""
        if self._pid:
            with suppress(ProcessLookupError, ChildProcessError):  # the caller may wait for all that end
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0
        if self._other is not None:
            self._other.close()
            self._other = None
            self._unsent.clear()

    def asked(self, key: Hashable, work: Callable[[], T]) -> tuple[T, bool]:
        """What the other one found, if it has been asked already, or what ``work`` finds; and which it is.

        Raises BusyError in the helper where the search is at it; the search waits for the helper.
        """
        self.hear(0.0)
        while key in self._begun and key not in self._found and self._other is not None:
            if self.here:
                raise BusyError
            if not self.hear(self.stuck_s):
                self.stop()
        known: T | None = self._found.get(key)
        if known is not None:
            return known, True
        self._say(("begun", key))
        answer: T | None = None
        try:
            answer = work()
        finally:
            self._say(("found", key, answer))
        return answer, False

    def knows(self, key: Hashable) -> bool:
        """Whether the other one has found it."""
        return self._found.get(key) is not None

    def is_past(self, key: tuple[Hashable, ...]) -> bool:
        """Whether the other one has begun with something that so begins."""
        return any(isinstance(begun, tuple) and begun[: len(key)] == key for begun in self._begun)

    def tell(self, best: Told) -> None:
        """The helper, if that is news."""
        if best != self.best:
            self.best = best
            self._say(("best", best))

    def _say(self, message: tuple[object, ...]) -> None:
        if self._other is None:
            return
        if not self._unsent:
            self._sent_s = time.monotonic()
        self._unsent.append(message)
        self._send()

    def _send(self) -> None:
        """What the other one takes now. The search waits for nobody: while a helper works, it takes little."""
        while self._unsent and self._other is not None and (self.here or _takes(self._other)):
            with suppress(OSError):  # it is done; what it said may not all have been heard
                self._other.send(self._unsent.popleft())
            self._sent_s = time.monotonic()
        if self._unsent and time.monotonic() - self._sent_s > self.stuck_s:
            self.stop()

    def hear(self, timeout_s: float) -> bool:
        """Take in what the other said, waiting so long for the first of it; whether there was any."""
        self._send()
        heard = False
        try:
            while self._other is not None and self._other.poll(0.0 if heard else timeout_s):
                match self._other.recv():
                    case ("begun", key):
                        self._begun.add(key)
                    case ("found", key, answer):
                        self._found[key] = answer
                    case ("best", best):
                        self.best = best
                heard = True
        except (EOFError, OSError):
            self.stop()
            if self.here:
                os._exit(0)
        return heard


def _takes(other: Connection) -> bool:
    """Whether a message may be sent without waiting."""
    asked = select.poll()
    asked.register(other.fileno(), select.POLLOUT)
    return bool(asked.poll(0))
