"""Many events as few: a track cut into equal bins, each with the category that fills most of it and how full it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autopar.cost_model.simulator import Event

LEVELS = 4


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Bins ``first`` to before ``last``; ``level`` of ``LEVELS`` is how full they are."""

    first: int
    last: int
    category: str
    level: int


def leaves(events: Sequence[Event]) -> Iterator[Event]:
    """Of one track's events, in order of their start and the longer first, those with no other inside."""
    for event, after in pairwise(events):
        if after.start_ns >= event.end_ns:
            yield event
    yield from events[-1:]


def binned(events: Iterable[Event], start_ns: int, end_ns: int, bins: int) -> list[Filled]:
    """Requires: ``events`` are disjoint. Those outside the window are left out; equal neighbours are one."""
    width = max(end_ns - start_ns, 1) / bins
    covered: list[dict[str, float]] = [{} for _ in range(bins)]
    for event in events:
        left = max(event.start_ns - start_ns, 0) / width
        right = min(event.end_ns - start_ns, end_ns - start_ns) / width
        at = int(left)
        while at < bins and left < right:
            edge = min(float(at + 1), right)
            covered[at][event.category] = covered[at].get(event.category, 0.0) + edge - left
            left, at = edge, at + 1
    found: list[Filled] = []
    for index, shares in enumerate(covered):
        if not shares:
            continue
        level = min(LEVELS, max(1, round(LEVELS * sum(shares.values()))))
        category = max(sorted(shares), key=lambda name: shares[name])
        last = found[-1] if found else None
        if last is not None and (last.last, last.category, last.level) == (index, category, level):
            found[-1] = Filled(first=last.first, last=index + 1, category=category, level=level)
        else:
            found.append(Filled(first=index, last=index + 1, category=category, level=level))
    return found
