"""The fixed part of an elimination: buckets, shapes and the segment's numbers, laid out once.

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
from autopar.passes.solve.order import elimination_order
from autopar.passes.solve.selection import Selection, is_pure, selection

FEW, SMALL_ENTRIES = 64, 1 << 16
"""So many assignments of a plan of so many tables times variables are measured by one product, more of either by one
table after the other."""

NUMBERS = SYNC, NET, EARLIER, AHEAD, BYTES, TRANSIENT = tuple(range(6))
"""Rows of ``Plan.numbers``; NET is hide - cover."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bucket:
    """Join ``parts`` (value index, shape to join by), small ones first, and minimise over ``scope[0]``.

    ``selection``: how to with less work, if there is a way.
    """

    scope: tuple[int, ...]
    shape: tuple[int, ...]
    parts: tuple[tuple[int, tuple[int, ...]], ...]
    tables: tuple[int, ...]
    selection: Selection | None

    @cached_property
    def lookups(self) -> tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]:
        """Of each part its index, how many values of the bucket's variable it tells apart, and the other variables
        that it depends on with their sizes."""
        return tuple(
            (index, shape[0], tuple((v, size) for v, size in zip(self.scope[1:], shape[1:], strict=True) if size > 1))
            for index, shape in self.parts
        )

    @property
    def entries(self) -> int:
        """That are joined or looked up."""
        return math.prod(self.shape) if self.selection is None else self.selection.entries


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How to eliminate all variables but ``kept``. Values are indexed tables, then extras, then messages."""

    domains: tuple[int, ...]
    kept: tuple[int, ...]
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
    domains = segment.domains
    free = frozenset(v for v, size in enumerate(domains) if size > 1).union(kept)
    given = [tuple(v for v in table.variables if v in free) for table in segment.tables]
    only = [is_pure(table) for table in segment.tables]
    extras = [tuple(v for v in scope if v in free) for scope in extras]
    picked = tuple(scope for scope, forbids in zip(given, only, strict=True) if forbids and len(scope) == 2)
    order = elimination_order(domains, (*given, *extras), tuple(kept), picked)
    position = {v: i for i, v in enumerate((*order, *kept))}
    merged, forbidding = _merge(segment, given, only, position)
    scopes = tuple(merged)
    numbers = np.concatenate(
        [m.reshape(len(NUMBERS), -1) for m in merged.values()] or [np.zeros((len(NUMBERS), 0), np.int64)], axis=1
    )
    sizes = [math.prod(domains[v] for v in scope) for scope in scopes]
    blocked = numbers[SYNC] >= FORBIDDEN // 2  # with what was added, which is far less
    numbers[SYNC, blocked] = FORBIDDEN
    extra_scopes = [tuple(sorted(scope, key=position.__getitem__)) for scope in extras]
    pure = {i: cube[SYNC] < FORBIDDEN for i, (scope, cube) in enumerate(merged.items()) if scope in forbidding}
    buckets, last = _buckets(domains, order, tuple(kept), [*scopes, *extra_scopes], len(scopes), position, pure)
    return Plan(
        domains=domains,
        kept=tuple(kept),
        scopes=scopes,
        offsets=tuple(int(n) for n in np.cumsum([0, *sizes])[:-1]),
        numbers=numbers,
        blocked=blocked,
        extras=tuple(
            (tuple(domains[v] for v in given), tuple(given.index(v) for v in scope))
            for given, scope in zip(extras, extra_scopes, strict=True)
        ),
        buckets=buckets,
        last=last,
        entries=sum(b.entries for b in buckets) + math.prod(domains[v] for v in kept),
    )


def _merge(
    segment: Segment, scopes: Sequence[tuple[int, ...]], only: Sequence[bool], position: dict[int, int]
) -> tuple[dict[tuple[int, ...], IntArray], set[tuple[int, ...]]]:
    """Sum tables of one scope, and small ones into the first larger one that holds their variables.

    ``scopes``: of each table the variables that are not decided; ``only``: whether it only forbids. What only forbids
    is left alone: its scopes are told, too.
    """
    sync, hide, cover, *others = segment.numbers
    numbers = np.stack([np.minimum(sync, FORBIDDEN), hide - cover, *others])
    domains, starts = segment.domains, segment.offsets
    found: dict[tuple[int, ...], IntArray] = {}
    pure: set[tuple[int, ...]] = set()
    by_variable: dict[int, list[tuple[int, ...]]] = {}
    for table in sorted(range(len(scopes)), key=lambda table: -len(scopes[table])):
        given = scopes[table]
        scope = tuple(sorted(given, key=position.__getitem__))
        cube = numbers[:, starts[table] : starts[table + 1]].reshape(len(NUMBERS), *[domains[v] for v in given])
        if scope != given:
            cube = cube.transpose(0, *[1 + given.index(v) for v in scope])
        near = by_variable.get(scope[0], []) if scope else found
        home = scope if scope in found else next((h for h in near if all(v in h for v in scope)), None)
        if home is None:
            found[scope] = cube
            if only[table]:
                pure.add(scope)
            for v in scope if scope not in pure else ():
                by_variable.setdefault(v, []).append(scope)
        else:
            if not only[table]:
                pure.discard(home)
            shape = [domains[v] if v in scope else 1 for v in home]
            found[home] = found[home] + cube.reshape(len(NUMBERS), *shape)
    return found, pure


def _buckets(
    domains: Sequence[int],
    order: tuple[int, ...],
    kept: tuple[int, ...],
    scopes: Sequence[tuple[int, ...]],
    n_tables: int,
    position: dict[int, int],
    pure: dict[int, npt.NDArray[np.bool_]],
) -> tuple[tuple[Bucket, ...], tuple[tuple[int, tuple[int, ...]], ...]]:
    waiting: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(len(order) + 1)]
    for index, scope in enumerate(scopes):
        waiting[min(position[scope[0]], len(order)) if scope else len(order)].append((index, scope))
    buckets: list[Bucket] = []
    for step, v in enumerate(order):
        names = {v}.union(*(scope for _, scope in waiting[step]))
        scope = tuple(sorted(names, key=position.__getitem__))
        parts, shape = _parts(domains, scope, waiting[step]), tuple(domains[v] for v in scope)
        tables = tuple(index for index, _ in waiting[step] if index < n_tables)
        buckets.append(Bucket(
            scope=scope, shape=shape, parts=parts, tables=tables, selection=selection(shape, parts, pure),
        ))  # fmt: skip
        target = len(order) if len(scope) == 1 else min(position[scope[1]], len(order))
        waiting[target].append((len(scopes) + step, scope[1:]))
    return tuple(buckets), _parts(domains, kept, waiting[-1])


def _parts(
    domains: Sequence[int], scope: tuple[int, ...], members: list[tuple[int, tuple[int, ...]]]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    shaped = [(index, tuple(domains[v] if v in inner else 1 for v in scope)) for index, inner in members]
    return tuple(sorted(shaped, key=lambda part: math.prod(part[1])))
