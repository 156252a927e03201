"""A problem with its shared variables fixed, and one that lets every call choose them anew.

All calls of a chain agree on what they share (tables of positions, masks, what another network computed). A block's
table over all of that is many times as large as the table for one state of it. A problem that lets calls disagree costs
no more in any state, and mostly as much: what is held whole is sliced for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from autopar.passes.problem import FORBIDDEN, Chain, IntArray, Problem, Segment, Table

ARRAYS = ("sync_ns", "hide_ns", "cover_ns", "earlier_ns", "ahead_ns", "bytes", "transient_bytes", "saved_bytes")


def fixed(segment: Segment, values: Mapping[int, int]) -> Segment:
    """The segment with some variables left one value each, which is number 0 then."""
    if not values:
        return segment

    def cut(table: Table) -> Table:
        at = tuple(slice(values[v], values[v] + 1) if v in values else slice(None) for v in table.variables)
        return replace(table, **{
            name: array[at] for name in ARRAYS if (array := getattr(table, name)) is not None
        })  # fmt: skip

    domains = tuple(1 if v in values else size for v, size in enumerate(segment.domains))
    return replace(segment, domains=domains, tables=tuple(map(cut, segment.tables)))


def with_state(problem: Problem, state: Mapping[int, int]) -> Problem:
    """The problem in which these root variables, the shared ones, have one value, and so have those of the calls."""
    chains = tuple(
        replace(chain, shared=(), root_shared=(), segment=fixed(chain.segment, {
            inner: state[outer] for inner, outer in zip(chain.shared, chain.root_shared, strict=True)
        }))
        for chain in problem.chains
    )  # fmt: skip
    # what calls carry on may begin as a shared variable, so all values of the root's keep their numbers
    only = tuple(_only(v, value, problem.root.domains[v]) for v, value in state.items())
    return replace(problem, root=replace(problem.root, tables=(*problem.root.tables, *only)), chains=chains)


def _only(variable: int, value: int, size: int) -> Table:
    return Table(variables=(variable,), sync_ns=np.where(np.arange(size) == value, 0, FORBIDDEN).astype(np.int64))


def apart(problem: Problem, entries: int = 0, last: AbstractSet[int] = frozenset()) -> Problem:
    """The problem in which nothing is shared: each entry of a block costs what it does in the best state for it.

    Shared variables on which most time depends stay, as long as a block's table over its boundary has no more than so
    many ``entries``; those of the root in ``last`` after all others.
    """
    return replace(problem, chains=tuple(_loosened(chain, entries, last) for chain in problem.chains))


def _loosened(chain: Chain, entries: int, last: AbstractSet[int]) -> Chain:
    domains, kept = chain.segment.domains, set[int]()
    size = math.prod(domains[v] for v in (*chain.inputs, *chain.outputs))
    outer = dict(zip(chain.shared, chain.root_shared, strict=True))
    for v in sorted(chain.shared, key=lambda v: (outer[v] in last, -_spread_ns(chain.segment, v))):
        if size * domains[v] <= entries:
            size *= domains[v]
            kept.add(v)
    pairs = [pair for pair in zip(chain.shared, chain.root_shared, strict=True) if pair[0] in kept]
    return replace(
        chain, segment=_without(chain.segment, tuple(v for v in chain.shared if v not in kept)),
        shared=tuple(v for v, _ in pairs), root_shared=tuple(r for _, r in pairs),
    )  # fmt: skip


def _spread_ns(segment: Segment, variable: int) -> int:
    """How far the times of the tables over a variable lie apart."""
    allowed = [t.sync_ns[t.sync_ns < FORBIDDEN] for t in segment.tables if variable in t.variables]
    return sum(int(times.max() - times.min()) for times in allowed if times.size)


def _without(segment: Segment, variables: tuple[int, ...]) -> Segment:
    def cut(table: Table) -> Table:
        axes = tuple(axis for axis, v in enumerate(table.variables) if v in variables)
        return _least(table, axes) if axes else table

    domains = tuple(1 if v in variables else size for v, size in enumerate(segment.domains))
    return replace(segment, domains=domains, tables=tuple(map(cut, segment.tables)))


def _least(table: Table, axes: tuple[int, ...]) -> Table:
    """Each number the least of those allowed, so what is paid is no more than for any of them."""
    allowed = table.sync_ns < FORBIDDEN

    def least(array: IntArray | None) -> IntArray | None:
        if array is None:
            return None
        low = np.where(allowed, array, FORBIDDEN).min(axis=axes, keepdims=True)
        return np.where(low == FORBIDDEN, 0, low)

    cover = None if table.cover_ns is None else least(-table.cover_ns)
    saved, held = least(table.saved_bytes), table.bytes
    if saved is not None and held is not None and table.saved_bytes is not None:  # for any number in flight
        rest = least(held - table.saved_bytes)
        assert rest is not None
        held = rest + saved
    else:
        held = least(held)
    return Table(
        variables=table.variables,
        sync_ns=np.where(allowed, table.sync_ns, FORBIDDEN).min(axis=axes, keepdims=True),
        hide_ns=least(table.hide_ns),
        cover_ns=None if cover is None else -cover,
        earlier_ns=least(table.earlier_ns),
        ahead_ns=least(table.ahead_ns),
        bytes=held,
        transient_bytes=least(table.transient_bytes),
        saved_bytes=saved,
    )
