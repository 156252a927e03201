"""Helpers of a search: copies of its process that work out bounds, or standard recipes, on other cores.

They answer what the search would have found itself, and nothing that follows from what was asked before. So how many
there are, and how fast they are, changes nothing but time. Each tells the others, by way of the search, what it begins
with and what it finds.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any, NamedTuple, TypeVar

from autopar.passes.cores import usable_cores
from autopar.passes.link import Link

STUCK_S = 30.0  # no bound takes so long
MOST = 3  # helpers

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
    """Another process is at the same bound."""


@dataclass(eq=False)
class Helper:
    """What other processes have found, by what was asked; nothing while there is no other.

    ``here``: whether this is a helper, ``number`` of ``several``. There ``best`` is what the search has told of its
    best plan. ``stuck_s``: a helper that works on one answer, or does not listen, for so long is given up.
    """

    here: bool = False
    number: int = 0
    several: int = 1
    best: Told = field(default_factory=Told)
    stuck_s: float = STUCK_S
    _found: dict[Hashable, Any] = field(default_factory=dict)  # None: to be asked here
    _begun: dict[Hashable, Link] = field(default_factory=dict)  # by whom
    _links: list[Link] = field(default_factory=list)

    def start(self, work: Callable[[], None], best: Told, wanted: int = 1) -> None:
        """Let copies of this process ``work``, as many as ``wanted``, with those there are, and there are cores for."""
        several = min(MOST, usable_cores() - 1) if sys.platform.startswith("linux") else 0
        self.best = best
        for number in range(len(self._links), min(wanted, several)):
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
                    for connection in (ours, *(link.connection for link in self._links)):
                        connection.close()
                    self.here, self.number, self.several, self._links = True, number, several, [Link(other)]
                    work()
                except Exception:  # what it found until then is kept
                    logging.getLogger(__name__).warning("a helper failed, its search goes on alone", exc_info=True)
                finally:
                    os._exit(0)  # nothing that is registered for the end of the process is the helper's to do
            other.close()
            self._links.append(Link(ours, pid))

    def stop(self) -> None:
        """End all helpers."""
        for link in [*self._links]:
            self._leave(link)

    def asked(self, key: Hashable, work: Callable[[], T]) -> tuple[T, bool]:
        """What another one found, if it has been asked already, or what ``work`` finds; and which it is.

        Raises BusyError in a helper where another process is at it; the search waits for helpers.
        """
        self.hear(0.0)
        since_s = time.monotonic()
        while key in self._begun and key not in self._found:
            if self.here:
                raise BusyError
            if self.hear(self.stuck_s):
                continue
            if time.monotonic() - since_s > self.stuck_s:
                self._leave(self._begun[key])
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
        """Whether another one has found it."""
        return self._found.get(key) is not None

    def is_past(self, key: tuple[Hashable, ...]) -> bool:
        """Whether another one has begun with something that so begins."""
        return any(isinstance(begun, tuple) and begun[: len(key)] == key for begun in self._begun)

    def tell(self, best: Told) -> None:
        """The helpers, if that is news."""
        if best != self.best:
            self.best = best
            self._say(("best", best))

    def hear(self, timeout_s: float) -> bool:
        """Take in what others said, waiting so long for the first of it; whether there was any."""
        heard = False
        for link in [*self._links]:
            self._send(link)
        while self._links:
            ready = wait([link.connection for link in self._links], 0.0 if heard else timeout_s)
            if not ready:
                break
            for link in [link for link in self._links if link.connection in ready]:
                heard = (link in self._links and self._take(link)) or heard
        return heard

    def _take(self, link: Link) -> bool:
        """Take in one message, and let others have it; False where there is none to come."""
        try:
            message = link.connection.recv()
        except (EOFError, OSError):
            if self.here:
                os._exit(0)
            self._leave(link)
            return False
        match message:
            case ("begun", key):
                self._begun[key] = link
            case ("found", key, answer):
                self._found[key] = answer
            case ("best", best):
                self.best = best
        self._say(message, but=link)
        return True

    def _say(self, message: tuple[object, ...], but: Link | None = None) -> None:
        for link in [*self._links]:
            if link is not but:
                link.say(message)
                self._send(link)

    def _send(self, link: Link) -> None:
        """The search waits for nobody: while a helper works, it takes little."""
        link.send(waiting=self.here)
        if link.is_deaf(self.stuck_s):
            self._leave(link)

    def _leave(self, link: Link) -> None:
        """End a helper; what it has begun with is to be done anew."""
        self._links.remove(link)
        link.end()
        self._begun = {key: by for key, by in self._begun.items() if by is not link or key in self._found}
