"""The fixed part of an elimination that follows from domains, scopes and what is forbidden alone, whatever the numbers.

Problems of meshes with the same axes differ in numbers mostly: the latest schemes are kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.passes.problem import FORBIDDEN, IntArray, Segment
from autopar.passes.solve.order import elimination_order
from autopar.passes.solve.selection import Selection, is_pure, selection

Scope: TypeAlias = tuple[int, ...]
Entries: TypeAlias = npt.NDArray[np.int32]

KEPT_SCHEMES, KEPT_ENTRIES = 64, 1 << 17
"""So many are kept, of segments with so many entries at most."""


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
class Scheme:
    """``rounds``: entries of all tables that are added up, one round after the other: where to (None: all in order),
    and which. Values are indexed merged tables, then extras, then messages."""

    scopes: tuple[Scope, ...]
    offsets: tuple[int, ...]
    rounds: tuple[tuple[Entries | None, Entries], ...]
    extras: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    buckets: tuple[Bucket, ...]
    last: tuple[tuple[int, tuple[int, ...]], ...]
    entries: int

    def merged(self, numbers: IntArray) -> IntArray:
        """[number, entry] of the merged tables, of those of a segment's tables one after the other."""
        (_, first), *others = self.rounds
        found = numbers[:, first]
        for at, which in others:
            found[:, at] += numbers[:, which]
        return found


def scheme_of(segment: Segment, kept: Sequence[int], extras: Sequence[Scope]) -> Scheme:
    """How to eliminate all variables of ``segment`` but ``kept``."""
    masks = tuple(
        (table.sync_ns < FORBIDDEN).tobytes() if is_pure(table) else None for table in segment.tables
    )  # fmt: skip
    made = _scheme if segment.offsets[-1] <= KEPT_ENTRIES else _scheme.__wrapped__
    return made(segment.domains, tuple(table.variables for table in segment.tables), masks, tuple(kept), tuple(extras))


@lru_cache(maxsize=KEPT_SCHEMES)
def _scheme(
    domains: tuple[int, ...], tables: tuple[Scope, ...], masks: tuple[bytes | None, ...], kept: tuple[int, ...],
    wanted: tuple[Scope, ...],
) -> Scheme:  # fmt: skip
    """``masks``: of tables that only forbid, what they allow. ``wanted``: scopes of tables known at run time only."""
    free = frozenset(v for v, size in enumerate(domains) if size > 1).union(kept)
    given = [tuple(v for v in variables if v in free) for variables in tables]
    extras = [tuple(v for v in scope if v in free) for scope in wanted]
    picked = tuple(scope for scope, mask in zip(given, masks, strict=True) if mask is not None and len(scope) == 2)
    order = elimination_order(domains, (*given, *extras), kept, picked)
    position = {v: i for i, v in enumerate((*order, *kept))}
    homes = _homes(given, masks, position)
    scopes = tuple(homes)
    sizes = [math.prod(domains[v] for v in scope) for scope in scopes]
    offsets = tuple(itertools.accumulate(sizes, initial=0))[:-1]
    begins = list(itertools.accumulate((math.prod(domains[v] for v in scope) for scope in tables), initial=0))
    allowed = dict[int, npt.NDArray[np.bool_]]()
    rounds: list[list[tuple[int, Entries]]] = []
    for number, (scope, members) in enumerate(homes.items()):
        shape = [domains[v] for v in scope]
        if all(masks[table] is not None for table in members):
            allowed[number] = np.ones(shape, dtype=bool)
        for turn, table in enumerate(members):
            own = given[table]
            entries = np.arange(begins[table], begins[table + 1], dtype=np.int32).reshape([domains[v] for v in own])
            entries = entries.transpose([own.index(v) for v in scope if v in own])
            cube = np.broadcast_to(entries.reshape([domains[v] if v in own else 1 for v in scope]), shape)
            if number in allowed:
                mask = np.frombuffer(masks[table] or b"", dtype=bool)
                allowed[number] &= mask[cube - begins[table]]
            if turn == len(rounds):
                rounds.append([])
            rounds[turn].append((offsets[number], cube.reshape(-1)))
    extra_scopes = [tuple(sorted(scope, key=position.__getitem__)) for scope in extras]
    buckets, last = _buckets(domains, order, kept, [*scopes, *extra_scopes], len(scopes), position, allowed)
    return Scheme(
        scopes=scopes,
        offsets=offsets,
        rounds=tuple(_round(turn, each) for turn, each in enumerate(rounds or [[]])),
        extras=tuple(
            (tuple(domains[v] for v in scope), tuple(scope.index(v) for v in after))
            for scope, after in zip(extras, extra_scopes, strict=True)
        ),
        buckets=buckets,
        last=last,
        entries=sum(b.entries for b in buckets) + math.prod(domains[v] for v in kept),
    )


def _round(turn: int, each: Sequence[tuple[int, Entries]]) -> tuple[Entries | None, Entries]:
    none = [np.zeros(0, dtype=np.int32)]
    which = np.concatenate([entries for _, entries in each] or none)
    at = np.concatenate([np.arange(begin, begin + entries.size, dtype=np.int32) for begin, entries in each] or none)
    return (at if turn else None), which


def _homes(
    scopes: Sequence[Scope], masks: Sequence[bytes | None], position: dict[int, int]
) -> dict[Scope, list[int]]:
    """By scope the tables that are added up there: those of one scope, and small ones in the first larger one that
    holds their variables. What only forbids is left alone.

    ``scopes``: of each table the variables that are not decided.
    """
    found: dict[Scope, list[int]] = {}
    pure: set[Scope] = set()
    by_variable: dict[int, list[Scope]] = {}
    for table in sorted(range(len(scopes)), key=lambda table: -len(scopes[table])):
        scope = tuple(sorted(scopes[table], key=position.__getitem__))
        near = by_variable.get(scope[0], []) if scope else found
        home = scope if scope in found else next((h for h in near if all(v in h for v in scope)), None)
        if home is None:
            found[scope] = [table]
            if masks[table] is not None:
                pure.add(scope)
            for v in scope if scope not in pure else ():
                by_variable.setdefault(v, []).append(scope)
        else:
            found[home].append(table)
    return found


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
