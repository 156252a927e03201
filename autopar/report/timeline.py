"""The simulated step: all of it by place, and a short window of one place stream by stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from autopar.cli.tables import percent, seconds
from autopar.cost_model.simulator import Event, Timeline
from autopar.report.density import leaves
from autopar.report.svg import Svg
from autopar.report.tracks import time_axis, track

COMPUTE = "compute"
MOST_PLACES = 16
# How many operations the close-up follows.
CLOSE = 160
KINDS = (
    ("forward", "forward"), ("backward", "backward"), ("recompute", "recomputation"), ("grad", "gradients accumulated"),
    ("optimizer", "optimizer"), ("communication", "communication"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """``busy``: share of the window in which the track does something."""

    label: str
    busy: str
    drawing: Svg


@dataclass(frozen=True, kw_only=True)
class Window:
    title: str
    rows: tuple[Row, ...]
    axis: Svg


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """``legend``: (category, words) of what occurs. ``left_out``: places that are not drawn."""

    windows: tuple[Window, ...]
    legend: tuple[tuple[str, str], ...]
    left_out: int


def drawn(timeline: Timeline) -> Drawn:
    streams = {
        key: list(leaves(list(events))) for key, events in groupby(timeline.events, key=lambda event: event.track)
    }
    places = [account.place for account in timeline.places]
    by_place: dict[int, dict[str, list[Event]]] = {place: {} for place in places}
    for key, events in streams.items():
        by_place[key.place][key.stream] = events
    shown = _sampled(places)
    end_ns = max(round(timeline.step_s * 1e9), 1)
    if len(places) == 1:
        rows = _streams(by_place[places[0]], 0, end_ns)
    else:
        rows = tuple(row for place in shown for row in _place(place, by_place[place], end_ns))
    whole = Window(title=f"The whole step, {seconds(timeline.step_s)}", rows=rows, axis=time_axis(end_ns))
    close = _close(by_place)
    seen = {
        event.category if key.stream == COMPUTE else "communication" for key, all_ in streams.items() for event in all_
    }
    return Drawn(
        windows=(whole,) if close is None else (whole, close),
        legend=tuple(each for each in KINDS if each[0] in seen), left_out=len(places) - len(shown),
    )  # fmt: skip


def _sampled(places: list[int]) -> list[int]:
    """The first and the last, and others evenly between them."""
    if len(places) <= MOST_PLACES:
        return places
    return [places[index * (len(places) - 1) // (MOST_PLACES - 1)] for index in range(MOST_PLACES)]


def _streams(streams: dict[str, list[Event]], start_ns: int, end_ns: int) -> tuple[Row, ...]:
    """What computes first."""
    ordered = sorted(streams, key=lambda stream: (stream != COMPUTE, stream))
    return tuple(_row(stream, streams[stream], start_ns, end_ns, communication=stream != COMPUTE) for stream in ordered)


def _place(place: int, streams: dict[str, list[Event]], end_ns: int) -> tuple[Row, ...]:
    """One track that computes, one for all that is sent."""
    sent = sorted(event for stream, events in streams.items() if stream != COMPUTE for event in events)
    return (
        _row(f"place {place}, compute", streams.get(COMPUTE, []), 0, end_ns, communication=False),
        _row("communication", _disjoint(sent), 0, end_ns, communication=True),
    )


def _disjoint(events: list[Event]) -> list[Event]:
    """Events of several streams as those of one: what overlaps is cut off where the one before ends."""
    found: list[Event] = []
    at = 0
    for event in sorted(events, key=lambda event: (event.start_ns, event.end_ns)):
        if event.end_ns > at:
            found.append(event._replace(start_ns=max(event.start_ns, at)))
            at = event.end_ns
    return found


def _row(label: str, events: Sequence[Event], start_ns: int, end_ns: int, *, communication: bool) -> Row:
    busy_ns = sum(max(0, min(event.end_ns, end_ns) - max(event.start_ns, start_ns)) for event in events)
    busy = percent(busy_ns / max(end_ns - start_ns, 1))
    return Row(
        label=label, busy=busy,
        drawing=track(f"{label}: busy {busy} of the time", events, start_ns, end_ns, communication=communication),
    )  # fmt: skip


def _close(by_place: dict[int, dict[str, list[Event]]]) -> Window | None:
    """From the middle of its backward passes, the place that computes most; none where the whole step is as short."""
    place = max(
        by_place, key=lambda place: (sum(e.end_ns - e.start_ns for e in by_place[place].get(COMPUTE, [])), -place)
    )
    computed = by_place[place].get(COMPUTE, [])
    if len(computed) <= 2 * CLOSE:
        return None
    backward = [index for index, event in enumerate(computed) if event.category == "backward"] or [len(computed) // 2]
    first = min(backward[len(backward) // 2], len(computed) - CLOSE)
    start, end = computed[first].start_ns, computed[first + CLOSE - 1].end_ns
    where = f" of place {place}" if len(by_place) > 1 else ""
    title = f"Close-up{where}: {CLOSE} operations in {seconds((end - start) / 1e9)} from {seconds(start / 1e9)} on"
    return Window(title=title, rows=_streams(by_place[place], start, end), axis=time_axis(end - start))
