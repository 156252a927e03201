"""Eliminating a variable that others only select from.

Where a value is held in several layouts for several consumers, each consumer's table with the set of layouts tells only
which sets will do. Consumers that ask for the same leave the same sets: the best one is found once for each such
*class*, not once for each assignment of all consumers, and then looked up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.passes.problem import FORBIDDEN, FloatArray, IntArray, Table

Part: TypeAlias = tuple[int, tuple[int, ...]]

FEWEST_ENTRIES = 1 << 10
"""Smaller buckets are joined at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """``rows``: values of a bucket's variable, class after class, from ``starts`` on; ``empty``: classes with none.

    ``classes``: of each assignment of the ``selecting`` axes of the bucket's scope. ``parts``: all others to be joined.
    """

    rows: IntArray
    starts: IntArray
    empty: IntArray
    classes: IntArray
    selecting: tuple[int, ...]
    parts: tuple[Part, ...]
    entries: int

    def message(self, values: Sequence[FloatArray], shape: Sequence[int], cases: tuple[int, ...] = ()) -> FloatArray:
        """Minimised over the variable. ``shape``: of the bucket's scope; ``cases``: of an axis behind it."""
        shape = *shape, *cases
        rest = [1 if axis in self.selecting else size for axis, size in enumerate(shape)]
        total = np.zeros((shape[0], *(1 for _ in shape[1:])))
        for index, part in self.parts:
            total = total + values[index].reshape((*part, *cases))
        total = np.broadcast_to(total, rest).reshape(shape[0], -1)
        best = np.minimum.reduceat(total[self.rows], self.starts, axis=0)
        best[self.empty] = np.inf
        found = best[self.classes].reshape([*(shape[axis] for axis in self.selecting), *rest[1:]])
        # the selecting axes stand first, and as ones where they belong
        first = len(self.selecting)
        keep = [*range(first), *(first + axis - 1 for axis in range(1, len(shape)) if axis not in self.selecting)]
        order = [*self.selecting, *(axis for axis in range(1, len(shape)) if axis not in self.selecting)]
        found = found.reshape([found.shape[axis] for axis in keep])
        return np.ascontiguousarray(np.transpose(found, np.argsort(order)))


def is_pure(table: Table) -> bool:
    """Whether a table only forbids, whatever memory is held."""
    others = (
        table.hide_ns, table.cover_ns, table.earlier_ns, table.ahead_ns, table.bytes, table.transient_bytes
    )  # fmt: skip
    forbidden = table.sync_ns >= FORBIDDEN
    return all(array is None for array in others) and bool(forbidden.any() and not table.sync_ns[~forbidden].any())


def selection(
    shape: Sequence[int], parts: Sequence[Part], pure: Mapping[int, npt.NDArray[np.bool_]]
) -> Selection | None:
    """The selection that is less work than joining all parts; None if there is none.

    ``pure``: where entries are allowed, of tables that only forbid, by value index.
    """
    wide = [axis for axis, size in enumerate(shape) if size > 1 and axis]
    picks = [(index, part) for index, part in parts if index in pure]
    if math.prod(shape) < FEWEST_ENTRIES or not picks or not wide:
        return None
    others = [part for index, part in parts if index not in pure]
    mixed = {axis for part in others for axis in range(1, len(shape)) if part[axis] > 1}
    picks = [(index, part) for index, part in picks if not any(part[axis] > 1 for axis in mixed)]
    selecting = tuple(axis for axis in wide if any(part[axis] > 1 for _, part in picks))
    if not selecting:
        return None
    allowed, classes = np.ones((shape[0], 1), dtype=bool), np.zeros([1 for _ in shape[1:]], dtype=np.int64)
    for index, part in picks:
        columns, which = _distinct(pure[index].reshape(shape[0], -1))
        allowed, merged = _distinct((allowed[:, :, None] & columns[:, None, :]).reshape(shape[0], -1))
        classes = merged[classes * columns.shape[1] + which.reshape(part[1:])]
    classes = np.ascontiguousarray(classes).reshape(-1)
    empty = np.flatnonzero(~allowed.any(axis=0))
    allowed[0, empty] = True  # so that every class has a row
    rows = allowed.T.nonzero()[1]
    starts = np.concatenate([[0], np.cumsum(allowed.sum(axis=0))[:-1]])
    rest = math.prod(size for axis, size in enumerate(shape) if axis and axis not in selecting)
    entries = rows.size * rest + math.prod(shape[1:])
    if 2 * entries > math.prod(shape):
        return None
    taken = {index for index, _ in picks}
    return Selection(
        rows=rows, starts=starts, empty=empty, classes=classes, selecting=selecting,
        parts=tuple(part for part in parts if part[0] not in taken), entries=entries,
    )  # fmt: skip


def _distinct(columns: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """The different columns, and which of them each one is."""
    packed = np.ascontiguousarray(np.packbits(columns, axis=0).T)
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return columns[:, first], which.reshape(-1).astype(np.int64)
