"""Tracks of a timeline as drawings: merged where events are many, one box each where they are few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from autopar.cli.tables import seconds
from autopar.cost_model.simulator import Event
from autopar.report.bars import axis
from autopar.report.density import LEVELS, Filled, binned
from autopar.report.svg import Svg, element, percent_of, picture

HEIGHT = 18
BINS = 720
# A track with more events than this is merged.
MOST_EVENTS = 400
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def track(label: str, events: Sequence[Event], start_ns: int, end_ns: int, *, communication: bool) -> Svg:
    """Requires: ``events`` are disjoint, those of the window or more."""
    inside = [event for event in events if event.end_ns > start_ns and event.start_ns < end_ns]
    if len(inside) > MOST_EVENTS:
        return _merged(label, binned(inside, start_ns, end_ns, BINS), communication=communication)
    length = max(end_ns - start_ns, 1)
    boxes = []
    for event in inside:
        first, last = max(event.start_ns, start_ns), min(event.end_ns, end_ns)
        words = " · ".join(word for word in (event.name, event.where) if word)
        title = element("title", f"{words} · {seconds((event.end_ns - event.start_ns) / 1e9)}")
        boxes.append(element(
            "rect", title, class_=_kind(event.category, communication=communication),
            x=percent_of((first - start_ns) / length), width=percent_of((last - first) / length), height=HEIGHT,
        ))  # fmt: skip
    return picture(label, *boxes, class_="track", width="100%", height=HEIGHT)


def _merged(label: str, filled: Iterable[Filled], *, communication: bool) -> Svg:
    """One path for each category and level, in bins as units of width."""
    paths: dict[tuple[str, int], list[str]] = {}
    for run in filled:
        kind = _kind(run.category, communication=communication)
        paths.setdefault((kind, run.level), []).append(f"M{run.first} 0H{run.last}V1H{run.first}Z")
    drawn = [
        element("path", class_=kind, d="".join(parts), fill_opacity=None if level == LEVELS else level / LEVELS)
        for (kind, level), parts in sorted(paths.items())
    ]
    return picture(
        label, *drawn, class_="track", width="100%", height=HEIGHT, viewBox=f"0 0 {BINS} 1", preserveAspectRatio="none"
    )


def _kind(category: str, *, communication: bool) -> str:
    return "k-communication" if communication else f"k-{category}"


def time_axis(length_ns: int) -> Svg:
    """Round moments from the start of a window, with their unit; at most six."""
    length_s = max(length_ns, 1) / 1e9
    rough = length_s / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    unit, name = next((unit for unit in UNITS if step >= unit[0] * 0.999), UNITS[-1])
    count = int(length_s / step + 1e-9)
    ticks = [(index * step / length_s, f"{index * step / unit:.6g} {name}") for index in range(count + 1)]
    return axis(ticks)
