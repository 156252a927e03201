"""One device: a compute stream that follows its instructions, and streams on which communication is on its way.

Communications on the same link at the same time share it equally. While the compute stream computes they get on at
the profile's overlap fraction of their speed; computing itself is never slowed down. So of H ns of communication, as
much as f · C is hidden behind C ns of computing, and only where what is waited for was posted before.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from autopar.cost_model.simulator.instructions import (
    Close,
    Collective,
    Instruction,
    Key,
    Move,
    Open,
    Post,
    Receive,
    Tell,
    Wait,
    Work,
)
from autopar.cost_model.simulator.record import Recorder
from autopar.cost_model.simulator.timeline import CATEGORIES, CAUSES
from autopar.ir.errors import IRError


class Flight:
    """A communication that was posted. ``left_ns`` of it remain; ``end`` is None until it has ended."""

    __slots__ = ("after", "asked", "end", "left_ns", "message", "move", "shown", "start")

    def __init__(
        self, move: Move, after: Flight | None, message: Key | None, *, shown: bool, asked: int | None
    ) -> None:
        self.move, self.after, self.message = move, after, message
        self.shown, self.asked = shown, asked
        self.left_ns = float(move.ns)
        self.start = 0.0
        self.end: float | None = None


class Device:
    """``arrived``: when each message was there, shared by all places. ``waiting``: the message that it stopped at.

    ``busy``, ``waits`` and ``moved`` in ns, as of ``Account``; ``stopped``: when its last instruction was done.
    """

    def __init__(
        self, place: int, script: Iterator[Instruction], overlap: float, arrived: dict[Key, float], record: Recorder
    ) -> None:
        self.place, self.record = place, record
        self.now = 0.0
        self.done = False
        self.waiting: Key | None = None
        self.busy = dict.fromkeys(CATEGORIES, 0.0)
        self.waits = dict.fromkeys(CAUSES, 0.0)
        self.moved = dict.fromkeys(CAUSES, 0.0)
        self._script, self._overlap, self._arrived = script, overlap, arrived
        self.stopped = 0.0
        self._since = 0.0
        self._flying: list[Flight] = []
        self._on_link: dict[str, int] = {}
        self._queues: dict[str, deque[Flight]] = {}
        self._posted: dict[Key, Flight] = {}

    def ready(self) -> bool:
        """Whether it can go on by itself."""
        return not self.done and (self.waiting is None or self.waiting in self._arrived)

    def run(self) -> None:
        """Follow the instructions to their end, or to a message that is not there yet."""
        if self.waiting is not None:
            self._receive(self.waiting)
            self.waiting = None
        for each in self._script:
            kind = type(each)
            if kind is Work:
                self._work(each)  # type: ignore[arg-type]
            elif kind is Collective:
                self._collective(each.move)  # type: ignore[union-attr]
            elif kind is Post:
                self._post(each)  # type: ignore[arg-type]
            elif kind is Wait:
                self._wait(each.key, each.cause)  # type: ignore[union-attr]
            elif kind is Open:
                self.record.open(self.place, self.now, each)  # type: ignore[arg-type]
            elif kind is Close:
                self.record.close(self.place, self.now)
            elif kind is Tell:
                self._arrived[each.message] = self.now  # type: ignore[union-attr]
            elif kind is Receive:
                self._since = self.now
                if each.message not in self._arrived:  # type: ignore[union-attr]
                    self.waiting = each.message  # type: ignore[union-attr]
                    return
                self._receive(each.message)  # type: ignore[union-attr]
        self.done, self.stopped = True, self.now

    def lands_at(self) -> float:
        """When its next communication ends if it computes nothing before; infinity where none is on its way."""
        return self._next(computing=False)[1]

    def land(self) -> None:
        """Go on to that moment."""
        flight, when = self._next(computing=False)
        assert flight is not None
        self._progress(when - self.now, computing=False)
        self.now = when
        self._end(flight)

    def _work(self, work: Work) -> None:
        start = self.now
        self._pass(start + work.ns, computing=True)
        self.busy[work.category] += work.ns
        self.record.work(self.place, start, work)

    def _collective(self, move: Move) -> None:
        if self._flying:
            self._post(Post(move, move))
            self._wait(move, move.cause)
            return
        start = self.now
        self.now += move.ns
        self.moved[move.cause] += move.ns
        self.waits[move.cause] += move.ns
        if self.record.shows(self.place, move):
            self.record.moved(self.place, move, start, self.now, self.record.asked(self.place, start), None)
            self.record.needed(self.place, move, self.now)

    def _post(self, post: Post) -> None:
        after = None if post.after is None else self._posted[post.after]
        shown = self.record.shows(self.place, post.move)
        asked = self.record.asked(self.place, self.now) if shown else None
        flight = Flight(post.move, after, post.message, shown=shown, asked=asked)
        self.moved[post.move.cause] += post.move.ns
        self._posted[post.key] = flight
        queue = self._queues.setdefault(post.move.stream, deque())
        queue.append(flight)
        if len(queue) == 1:
            self._begin(queue)

    def _wait(self, key: Key, cause: str) -> None:
        flight, since = self._posted[key], self.now
        while flight.end is None:
            if not self._flying:
                raise IRError(f"place {self.place} waits for {flight.move.name}, which nothing begins")
            self.land()
        self.waits[cause] += self.now - since
        if flight.shown:
            self.record.needed(self.place, flight.move, flight.end)

    def _receive(self, message: Key) -> None:
        self._pass(max(self.now, self._arrived[message]), computing=False)
        self.waits["places"] += self.now - self._since
        self.record.received(self.place, message)

    def _begin(self, queue: deque[Flight]) -> None:
        """The first of a stream's queue sets out, if what it follows has ended."""
        flight = queue[0]
        if flight.after is not None and flight.after.end is None:
            return
        flight.start = self.now
        self._flying.append(flight)
        self._on_link[flight.move.link] = self._on_link.get(flight.move.link, 0) + 1

    def _end(self, flight: Flight) -> None:
        flight.end = self.now
        self._flying.remove(flight)
        self._on_link[flight.move.link] -= 1
        move = flight.move
        if flight.shown:
            self.record.moved(self.place, move, flight.start, self.now, flight.asked, flight.message)
        if flight.message is not None:
            self._arrived[flight.message] = self.now
        self._queues[move.stream].popleft()
        for queue in self._queues.values():
            if queue and queue[0] not in self._flying:
                self._begin(queue)

    def _pass(self, end: float, *, computing: bool) -> None:
        """Time goes on to ``end``."""
        while self._flying:
            flight, when = self._next(computing=computing)
            if flight is None or when > end:
                self._progress(end - self.now, computing=computing)
                break
            self._progress(when - self.now, computing=computing)
            self.now = when
            self._end(flight)
        self.now = end

    def _next(self, *, computing: bool) -> tuple[Flight | None, float]:
        soonest, when = None, math.inf
        speed = self._overlap if computing else 1.0
        if speed:
            for flight in self._flying:
                ends = self.now + max(flight.left_ns, 0.0) * self._on_link[flight.move.link] / speed
                if ends < when:
                    soonest, when = flight, ends
        return soonest, when

    def _progress(self, ns: float, *, computing: bool) -> None:
        speed = self._overlap if computing else 1.0
        for flight in self._flying:
            flight.left_ns -= ns * speed / self._on_link[flight.move.link]


def run(devices: list[Device], arrived: dict[Key, float]) -> float:
    """Run all places together; the time at which the last of them is done, in ns.

    A place that waits for no other runs ahead: nothing that happens elsewhere concerns it. Where all wait, the next
    thing to happen is the communication that ends first. Raises IRError where nothing can happen any more.
    """
    while True:
        while ready := [device for device in devices if device.ready()]:
            for device in ready:
                device.run()
        first = min(devices, key=lambda device: (device.lands_at(), device.place))
        if first.lands_at() < math.inf:
            first.land()
        elif all(device.done for device in devices):
            return max(device.now for device in devices)
        else:
            stuck = [f"place {device.place} for {device.waiting}" for device in devices if not device.done]
            raise IRError(f"the places of the pipeline wait for each other: {'; '.join(stuck)}")
