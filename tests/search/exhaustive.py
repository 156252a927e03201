"""Every assignment of a problem, joined table by table: an oracle that shares nothing with the solver.

What two partial assignments that agree in all variables still needed differ in is six sums; one that is no better
in any of them than another is dropped, which loses no optimum. ``passes/solve/brute.py`` drops nothing and so takes
only the tiniest problems.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autopar.passes.problem import FORBIDDEN, Chain, Problem, Segment

Ints = npt.NDArray[np.int64]
SYNC, NET, EARLIER, AHEAD, BYTES, TRANSIENT = range(6)


def outcomes(problem: Problem) -> list[tuple[int, int]]:
    """Undominated (time in ns, bytes with the largest transient) of all assignments; empty where none is allowed."""
    ends = [(*chain.root_inputs, *chain.root_shared, *chain.root_outputs) for chain in problem.chains]
    outer = sorted({v for variables in ends for v in variables})
    rows, sums = _points(problem.root, outer)
    totals = _instance(sums)
    for chain, variables in zip(problem.chains, ends, strict=True):
        at = [outer.index(v) for v in variables]
        rows, totals = _joined(rows, totals, rows[:, at], _calls(chain))
    every = np.stack([totals[:, 0], totals[:, 1] + totals[:, 2]], axis=1)
    kept = _undominated(np.zeros((len(every), 0), dtype=np.int64), every)
    return sorted((int(t), int(m)) for t, m in every[kept])


def _instance(sums: Ints) -> Ints:
    """Time, bytes and transient of instances."""
    exposed = np.max(_exposed(sums), axis=0)
    return np.stack([sums[:, SYNC] + exposed, sums[:, BYTES], sums[:, TRANSIENT]], axis=1)


def _exposed(sums: Ints) -> list[Ints]:
    """What formula (1) takes the largest of."""
    late, earlier = sums[:, NET], sums[:, NET] + sums[:, EARLIER]
    return [np.zeros_like(late), late, earlier, earlier + sums[:, AHEAD]]


def _calls(chain: Chain) -> tuple[Ints, Ints]:
    """(inputs, shared, outputs) of all calls in a row, with (time, bytes, largest transient)."""
    states, shared = len(chain.inputs), len(chain.shared)
    rows, sums = _points(chain.segment, (*chain.inputs, *chain.shared, *chain.outputs))
    one = rows, _instance(sums)
    rows, totals = one
    for _ in range(chain.count - 1):
        # what comes out of the calls so far and is shared goes into one more
        key = np.concatenate([rows[:, states + shared :], rows[:, states : states + shared]], axis=1)
        wide, totals = _joined(rows, totals, key, one, by=states + shared)
        rows = np.concatenate([wide[:, : states + shared], wide[:, -states:]], axis=1) if states else wide[:, :shared]
        kept = _undominated(rows, totals)
        rows, totals = rows[kept], totals[kept]
    return rows, totals


def _joined(
    rows: Ints, totals: Ints, key: Ints, other: tuple[Ints, Ints], *, by: int | None = None
) -> tuple[Ints, Ints]:
    """Pairs of ``rows`` and others whose first ``by`` columns are ``key``; times and bytes add, transients do not.

    With ``by`` the other's further columns are put behind.
    """
    there: dict[tuple[int, ...], list[int]] = {}
    width = key.shape[1] if by is None else by
    for index, values in enumerate(other[0][:, :width].tolist()):
        there.setdefault(tuple(values), []).append(index)
    pairs = [(a, b) for a, values in enumerate(key.tolist()) for b in there.get(tuple(values), ())]
    left, right = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    mine, its = totals[left], other[1][right]
    found = np.stack([mine[:, 0] + its[:, 0], mine[:, 1] + its[:, 1], np.maximum(mine[:, 2], its[:, 2])], axis=1)
    wide = rows[left] if by is None else np.concatenate([rows[left], other[0][right][:, width:]], axis=1)
    kept = _undominated(wide, found)
    return wide[kept], found[kept]


def _points(segment: Segment, kept: Sequence[int]) -> tuple[Ints, Ints]:
    """Values of ``kept`` and the six sums of every undominated assignment of a segment."""
    alive: list[int] = []
    rows, sums = np.zeros((1, 0), dtype=np.int64), np.zeros((1, 6), dtype=np.int64)
    waiting = list(range(len(segment.tables)))
    for variable in _order(segment, kept):
        size = segment.domains[variable]
        values = np.tile(np.arange(size), len(rows))[:, None]
        rows, sums = np.concatenate([np.repeat(rows, size, axis=0), values], axis=1), np.repeat(sums, size, axis=0)
        alive.append(variable)
        for number in [n for n in waiting if set(segment.tables[n].variables) <= set(alive)]:
            waiting.remove(number)
            table = segment.tables[number]
            at = tuple(rows[:, alive.index(v)] for v in table.variables)
            zero = np.zeros_like(table.sync_ns)
            hide, cover, earlier, ahead, held, passing = (
                zero if array is None else array
                for array in (
                    table.hide_ns, table.cover_ns, table.earlier_ns, table.ahead_ns, table.bytes, table.transient_bytes,
                )
            )
            parts = (table.sync_ns, hide - cover, earlier, ahead, held, passing)
            more = np.stack([part[at] for part in parts], axis=1)
            allowed = more[:, SYNC] < FORBIDDEN
            rows, sums = rows[allowed], sums[allowed] + more[allowed]
        needed = {*kept, *(v for n in waiting for v in segment.tables[n].variables)}
        stay = [i for i, v in enumerate(alive) if v in needed]
        rows, alive = rows[:, stay], [alive[i] for i in stay]
        times = [sums[:, SYNC] + exposed for exposed in _exposed(sums)]
        best = _undominated(rows, np.stack([*times, *sums[:, BYTES:].T], axis=1))
        rows, sums = rows[best], sums[best]
    return rows[:, [alive.index(v) for v in kept]], sums


def _order(segment: Segment, kept: Sequence[int]) -> list[int]:
    """All variables, each time the one that lets most others be forgotten, those that are kept last of equals."""
    left: list[int] = list(range(len(segment.domains)))
    order: list[int] = []
    scopes = [set(table.variables) for table in segment.tables]
    while left:
        done = set(order)

        def grown(variable: int, done: set[int] = done) -> tuple[int, bool, int]:
            now = done | {variable}
            alive = {v for v in now if v in kept or any(v in scope and not scope <= now for scope in scopes)}
            return int(np.prod([segment.domains[v] for v in alive], dtype=np.int64)), variable in kept, variable

        order.append(min(left, key=grown))
        left.remove(order[-1])
    return order


def _undominated(rows: Ints, costs: Ints) -> Ints:
    """Indices without those that another with the same row equals or beats in all costs; some of these may stay."""
    key = np.zeros(len(rows), np.int64)
    if rows.shape[1]:
        key = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((*reversed(costs.T), key))
    for back in itertools.chain(range(1, 48), range(1, 8)):
        if back >= len(order):
            continue
        k, c = key[order], costs[order]
        beaten = np.zeros(len(order), dtype=np.bool_)
        beaten[back:] = (k[back:] == k[:-back]) & (c[:-back] <= c[back:]).all(axis=1)
        order = order[~beaten]
    return np.sort(order)
