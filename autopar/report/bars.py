"""A horizontal bar of parts, and points on a scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autopar.report.svg import Svg, element, percent_of, picture

HEIGHT = 18


@dataclass(frozen=True, kw_only=True)
class Part:
    """``share``: of the bar's whole width. ``kind``: the category, which has one colour in all of the page."""

    share: float
    kind: str
    title: str


def bar(label: str, parts: Iterable[Part], *, mark: float | None = None) -> Svg:
    """Parts one after the other; ``mark`` is a line across, at a share of the width."""
    drawn: list[Svg] = [element("rect", class_="ground", width="100%", height=HEIGHT)]
    at = 0.0
    for part in parts:
        if part.share > 0:
            drawn.append(element(
                "rect", element("title", part.title), class_=f"k-{part.kind}", x=percent_of(at),
                width=percent_of(part.share), height=HEIGHT,
            ))  # fmt: skip
        at += part.share
    if mark is not None:
        drawn.append(_line(mark))
    return picture(label, *drawn, class_="bar", width="100%", height=HEIGHT)


def span(label: str, first: float, point: float | None, *, mark: float, kind: str) -> Svg:
    """All from ``first`` on, a point in it, and a line across; shares of the width, what is outside is at its edge."""
    first, middle = min(max(first, 0.0), 1.0), HEIGHT / 2
    drawn = [
        element(
            "rect", class_=f"span k-{kind}", x=percent_of(first), y=middle - 3, width=percent_of(1 - first), height=6
        ),
        element("rect", class_=f"k-{kind}", x=percent_of(min(first, 0.995)), y=middle - 6, width=2, height=12),
    ]
    if point is not None:
        drawn.append(element("circle", class_=f"k-{kind}", cx=percent_of(min(max(point, 0.0), 1.0)), cy=middle, r=4))
    return picture(label, *drawn, _line(mark), class_="bar", width="100%", height=HEIGHT)


def axis(ticks: Sequence[tuple[float, str]]) -> Svg:
    """Labels under a drawing, at shares of its width."""
    drawn: list[Svg] = []
    for at, text in ticks:
        anchor = "start" if at < 0.02 else "end" if at > 0.95 else "middle"
        drawn.append(element("line", x1=percent_of(at), x2=percent_of(at), y1=0, y2=4))
        drawn.append(element("text", text, x=percent_of(at), y=15, text_anchor=anchor))
    return element("svg", *drawn, class_="axis", width="100%", height=18, aria_hidden="true")


def _line(at: float) -> Svg:
    return element("line", class_="mark", x1=percent_of(at), x2=percent_of(at), y1=0, y2=HEIGHT)
