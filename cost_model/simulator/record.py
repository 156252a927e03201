"""Events and flows, written down while the devices run.

Moments are rounded to whole ns in a way that keeps their order: events that nest or follow one another still do. What
takes no time is not written down. Where a timeline tells less (``detail``), an event stands for all that is in it.
"""

from __future__ import annotations

from typing import NamedTuple

from autopar.cost_model.simulator.instructions import Key, Move, Open, Work
from autopar.cost_model.simulator.timeline import COMPUTE, Event, Flow, Track

# What is not told of within what was opened at which level, by detail.
HIDES = {"operations": (), "calls": ("call",), "passes": ("call", "pass")}


class Moment(NamedTuple):
    """Within an event: where a flow may begin."""

    track: Track
    at_ns: int


class Recorder:
    """``events`` in the order in which they ended."""

    def __init__(self, detail: str, places: int) -> None:
        self.events: list[Event] = []
        self.flows: list[Flow] = []
        self._hides = HIDES[detail]
        self._tracks = [Track(place, COMPUTE) for place in range(places)]
        self._opened: list[list[tuple[int, Open]]] = [[] for _ in range(places)]
        self._muted = [0] * places
        self._last = [(0, 0)] * places
        self._sent: dict[Key, Moment] = {}
        self._needed: list[list[Moment]] = [[] for _ in range(places)]

    def open(self, place: int, now: float, what: Open) -> None:
        if self._muted[place]:
            self._muted[place] += 1
            return
        self._opened[place].append((_ns(now), what))
        if what.level in self._hides:
            self._muted[place] = 1

    def close(self, place: int, now: float) -> None:
        self._muted[place] = max(self._muted[place] - 1, 0)
        if self._muted[place]:
            return
        start, what = self._opened[place].pop()
        self._event(self._tracks[place], what.name, start, _ns(now), what.category, what.where)

    def work(self, place: int, start: float, work: Work) -> None:
        """Its operations, one after the other, and what they needed."""
        first, last = _ns(start), _ns(start + work.ns)
        if first == last:
            return
        track = self._tracks[place]
        self.flows += [Flow(*source, track, first) for source in self._needed[place]]
        self._needed[place].clear()
        self._last[place] = (first, last)
        if self._muted[place]:
            return
        at = start
        for part in work.parts:
            self._event(track, part.name, _ns(at), _ns(at + part.ns), work.category, part.where)
            at += part.ns

    def asked(self, place: int, now: float) -> int | None:
        """The moment before ``now``, at which the place computed; None where it did not."""
        end, opened, last = _ns(now), self._opened[place], self._last[place]
        covered = (opened and opened[0][0] < end) or last[0] < end == last[1]
        return end - 1 if covered else None

    def shows(self, place: int, move: Move) -> bool:
        """Whether a communication that is asked for now is told of."""
        return move.ns > 0 and not (self._muted[place] and move.cause == "collectives")

    def moved(self, place: int, move: Move, start: float, end: float, asked: int | None, message: Key | None) -> None:
        """A communication that has ended."""
        track = Track(place, move.stream)
        self._event(track, move.name, _ns(start), _ns(end), move.category, move.where)
        if asked is not None:
            self.flows.append(Flow(self._tracks[place], asked, track, _ns(start)))
        if message is not None:
            self._sent[message] = Moment(track, _ns(end) - 1)

    def needed(self, place: int, move: Move, end: float) -> None:
        """Computing goes on behind a communication."""
        self._needed[place].append(Moment(Track(place, move.stream), _ns(end) - 1))

    def received(self, place: int, message: Key) -> None:
        if message in self._sent:
            self._needed[place].append(self._sent[message])

    def _event(self, track: Track, name: str, start: int, end: int, category: str, where: str) -> None:
        if start < end:
            self.events.append(Event(track, name, start, end, category, where))


def _ns(moment: float) -> int:
    """Halves go up: what is 1 ns or more apart stays apart."""
    return int(moment + 0.5)
