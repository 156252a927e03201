"""Interpolation between measured points, on logarithmic axes, where problem sizes span ten decades."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Literal


class LogCurve:
    """A piecewise linear figure over ``log(size)``.

    ``value_axis`` says whether the figure itself is taken linear or logarithmic between points. Outside the
    points it is constant, except that ``grows_past_end`` continues in proportion to the size.
    """

    __slots__ = ("_first", "_grows", "_intercepts", "_is_log", "_last", "_slopes", "_values", "_x")

    def __init__(
        self,
        sizes: Sequence[float],
        values: Sequence[float],
        *,
        value_axis: Literal["linear", "log"] = "linear",
        grows_past_end: bool = False,
    ) -> None:
        self._is_log = value_axis == "log"
        self._grows = grows_past_end
        self._values = (values[0], values[-1])
        self._first, self._last = sizes[0], sizes[-1]
        self._x = [math.log(size) for size in sizes]
        ys = [math.log(value) if self._is_log else value for value in values]
        self._slopes: list[float] = []
        self._intercepts: list[float] = []
        for (x0, x1), (y0, y1) in zip(itertools.pairwise(self._x), itertools.pairwise(ys), strict=True):
            slope = (y1 - y0) / (x1 - x0)
            self._slopes.append(slope)
            self._intercepts.append(y0 - slope * x0)

    def __call__(self, size: float) -> float:
        """The figure at ``size``, zero or more."""
        if size <= self._first:
            return self._values[0]
        if size >= self._last:
            return self._values[1] * size / self._last if self._grows else self._values[1]
        x = math.log(size)
        piece = bisect.bisect_right(self._x, x, 1, len(self._x) - 1) - 1
        y = self._slopes[piece] * x + self._intercepts[piece]
        return math.exp(y) if self._is_log else y
