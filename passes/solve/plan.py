"""The fixed part of an elimination: a scheme with a segment's numbers, laid out once.

Every array of a plan has its axes sorted by elimination position (first eliminated first, kept variables
last in the order given), so that tables and messages join by reshape alone, and the tables of a segment are
views of one flat vector, so that pricing them is a handful of vector operations.

Variables with one value stand in no array, unless they are kept: there is nothing to choose, and with
them an array could have more axes than numpy knows (a model on one device has hundreds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autopar.passes.problem import FORBIDDEN, FloatArray, IntArray, Segment
from autopar.passes.solve.scheme import Bucket, Scheme, scheme_of

FEW, SMALL_ENTRIES = 64, 1 << 16
"""So many assignments of a plan of so many tables times variables are measured by one product, more of either by one
table after the other."""

NUMBERS = SYNC, NET, EARLIER, AHEAD, BYTES, TRANSIENT = tuple(range(6))
"""Rows of ``Plan.numbers``; NET is hide - cover."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How to eliminate all variables but ``kept``. Values are indexed tables, then extras, then messages."""

    domains: tuple[int, ...]
    kept: tuple[int, ...]
    scheme: Scheme
    scopes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    numbers: IntArray
    blocked: npt.NDArray[np.bool_]
    extras: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    buckets: tuple[Bucket, ...]
    last: tuple[tuple[int, tuple[int, ...]], ...]
    entries: int

    @cached_property
    def reach(self) -> int:
        """The mu above which nothing is told: nobody is ahead, or nobody earlier either."""
        return 3 if self.numbers[AHEAD].any() else 2 if self.numbers[EARLIER].any() else 1

    @property
    def kept_entries(self) -> int:
        """Entries of all messages, which a run keeps."""
        return sum(math.prod(bucket.shape[1:]) for bucket in self.buckets)

    def arranged(self, extras: Sequence[FloatArray]) -> list[FloatArray]:
        """The run-time tables without their decided variables, axes in the order of elimination."""
        return [
            np.transpose(table.reshape(shape), axes)
            for table, (shape, axes) in zip(extras, self.extras, strict=True)
        ]

    @cached_property
    def _strides(self) -> IntArray:
        """[table, variable]: how far apart the entries of its values lie."""
        found = np.zeros((len(self.scopes), len(self.domains)), dtype=np.int64)
        for row, scope in zip(found, self.scopes, strict=True):
            for at, v in enumerate(scope):
                row[v] = math.prod(self.domains[u] for u in scope[at + 1 :])
        return found

    @cached_property
    def _starts(self) -> IntArray:
        """[table, 1]: where its entries begin."""
        return np.array(self.offsets, dtype=np.int64)[:, None]

    def measure(self, assignments: IntArray) -> IntArray:
        """Return the sums (NUMBERS, E) of assignments (variables, E)."""
        if assignments.shape[1] <= FEW and len(self.scopes) * len(self.domains) <= SMALL_ENTRIES:
            return np.asarray(self.numbers[:, self._strides @ assignments + self._starts].sum(axis=1))
        total = np.zeros((len(NUMBERS), assignments.shape[1]), dtype=np.int64)
        for table in range(len(self.scopes)):
            total += self.numbers[:, self.entry(table, assignments)]
        return total

    def smallest(self) -> IntArray:
        """Return (NUMBERS, tables): the least number of each kind that an entry which is allowed has, else 0."""
        if not self.scopes:
            return np.zeros((len(NUMBERS), 0), dtype=np.int64)
        none = np.int64(1 << 62)
        low = np.minimum.reduceat(np.where(self.blocked, none, self.numbers), self.offsets, axis=1)
        return np.where(low == none, 0, low)

    def entry(self, table: int, assignments: IntArray) -> IntArray:
        """Return the flat index of the entry of ``table`` that each assignment stands at."""
        index = np.zeros(assignments.shape[1], dtype=np.int64)
        for v in self.scopes[table]:
            index = index * self.domains[v] + assignments[v]
        return index + self.offsets[table]


def make_plan(segment: Segment, *, kept: Sequence[int], extras: Sequence[tuple[int, ...]] = ()) -> Plan:
    """Lay out ``segment`` for elimination down to ``kept``.

    ``extras`` are the scopes of tables known only at run time; a scope may name a variable once only.
    """
    scheme = scheme_of(segment, kept, extras)
    sync, hide, cover, *others = segment.numbers
    numbers = scheme.merged(np.stack([np.minimum(sync, FORBIDDEN), hide - cover, *others]))
    blocked = numbers[SYNC] >= FORBIDDEN // 2  # with what was added, which is far less
    numbers[SYNC, blocked] = FORBIDDEN
    return Plan(
        domains=segment.domains, kept=tuple(kept), scheme=scheme, scopes=scheme.scopes, offsets=scheme.offsets,
        numbers=numbers, blocked=blocked, extras=scheme.extras, buckets=scheme.buckets, last=scheme.last,
        entries=scheme.entries,
    )  # fmt: skip
