"""A parameter as a small matrix, cut by rows and columns in the axes' colours; what one device holds is filled."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autopar.report.svg import Svg, element, picture

SIDE = 24
# More parts of a side than these cannot be told from each other; of each band of it, fewer are not shown.
MOST_PARTS, FEWEST_PARTS = 8, 4
_SPLIT = re.compile(r"S\((\d+)\)(?:/(\d+))?")


def pictogram(
    shape: tuple[int, ...], choices: Mapping[str, str], sizes: Mapping[str, int], slots: Mapping[str, int]
) -> Svg:
    """Rows are dim 0, columns are dim 1; dims after these are not drawn. A large axis is drawn with fewer parts.

    ``S(0)/3``: each of 3 parts of dim 0 is cut by itself.
    """
    wide, high = (SIDE, SIDE) if len(shape) > 1 else (8, SIDE)
    cuts: list[Svg] = []
    held = [[(0.0, 1.0)], [(0.0, 1.0)]]  # for rows and columns, what is held, as shares
    for axis, text in choices.items():
        match = _SPLIT.match(text)
        if match is None or int(match[1]) > 1 or sizes.get(axis, 1) < 2:
            continue
        dim, bands = int(match[1]), int(match[2] or 1)
        pieces = [(first + (last - first) * band / bands, (last - first) / bands)
                  for first, last in held[dim] for band in range(bands)]  # fmt: skip
        size = min(sizes[axis], max(FEWEST_PARTS, MOST_PARTS // len(pieces)))
        for start, length in pieces:
            for cut in range(1, size):
                cuts.append(_cut(dim, start + length * cut / size, wide, high, slots.get(axis, 0)))
        held[dim] = [(start, start + length / size) for start, length in pieces]
    filled = [
        element("rect", class_="held", x=1 + left * wide, y=1 + top * high, width=(right - left) * wide,
                height=(bottom - top) * high)
        for top, bottom in held[0] for left, right in held[1]
    ]  # fmt: skip
    frame = element("rect", class_="frame", x=1, y=1, width=wide, height=high)
    words = ", ".join(f"{axis} {text}" for axis, text in choices.items() if text != "R") or "whole"
    return picture(words, *filled, *cuts, frame, class_="matrix", width=wide + 2, height=high + 2)


def _cut(dim: int, at: float, wide: int, high: int, slot: int) -> Svg:
    if dim == 0:
        return element("line", class_=f"s{slot}", x1=1, x2=1 + wide, y1=1 + at * high, y2=1 + at * high)
    return element("line", class_=f"s{slot}", x1=1 + at * wide, x2=1 + at * wide, y1=1, y2=1 + high)
