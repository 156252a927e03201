"""Choose integer counts of columns so that they form one assignment of the whole problem.

Data       t, b, w: time, bytes, transient of every column; in, out, shared: the states it links; n calls
Variables  y[r] in {0,1} for root columns, x[c] in 0..n for columns of chains, u[k] in {0,1}: some column
           with transient >= the k-th smallest is used
Minimise   sum t y + sum t x                                                            (15)
Subject to sum y = 1                                                                    (16)
           per chain and shared state: sum x = n * sum of y with that shared state      (17)
           per chain, shared state, state q: sum of x leaving q - sum of x entering q
             = sum of y that start in q - sum of y that end in q                        (18)
           a column of level k is used only if u[k]; u falls with k                     (19)
           sum b y + sum b x + largest transient by u  <=  memory_bytes                 (20)
           the used columns of a chain hang together                                    (21)

(21) is, for a set K of states,
    n * (sum of x entering K + sum of y that start in K)  >=  sum of x inside K,
for every single state to begin with, and for sets the start does not reach when a solution has such.
Counts that satisfy (17), (18) and (21) are an Euler path, which gives the order of the calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from autopar.passes.problem import IntArray
from autopar.passes.solve.choice import Candidate
from autopar.passes.solve.euler import euler_runs, unreached
from autopar.passes.solve.model import HELD, TIME, WORK, Model
from autopar.passes.solve.pool import Pool

ROUNDS = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class MasterAnswer:
    """``bound`` holds for all assignments made of the pool's columns; None where there are none."""

    bound: float | None
    candidate: Candidate | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Links:
    """States that the columns of one chain, and the root columns at its ends, link."""

    start: IntArray
    shared: IntArray
    end: IntArray
    root_start: IntArray
    root_shared: IntArray
    root_end: IntArray
    count: int


def solve_master(
    model: Model,
    pool: Pool,
    *,
    memory_bytes: int,
    hint: Candidate | None,
    below: int | None,
    slack: float,
    work: float,
) -> MasterAnswer:
    """Solve (15) to (21) within ``work`` units of deterministic time.

    ``hint`` is a known assignment of these columns; without one, only times up to ``below`` are looked for.
    The search ends when it is within ``slack`` nanoseconds of its bound.
    """
    links = [_links(model, pool, number) for number in range(len(model.chains))]
    cp = cp_model.CpModel()
    y = [cp.new_bool_var("") for _ in range(pool.values[0].shape[1])]
    cp.add_exactly_one(y)
    x = [[cp.new_int_var(0, k.count, "") for _ in range(k.start.size)] for k in links]
    for k, row in zip(links, x, strict=True):
        _add_flow(cp, k, y, row)
    largest = _add_levels(cp, pool, links, y, x)
    held, time = [_Total(cp, pool, row, links, y, x) for row in (HELD, TIME)]
    cp.add(held.terms + largest <= memory_bytes - held.base)
    cp.minimize(time.terms)
    if hint is not None:
        _add_hint(cp, pool, hint, y, x)
    elif below is not None:
        cp.add(time.terms <= below - time.base)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work
    solver.parameters.linearization_level = 2
    bound: float | None = None
    for _ in range(ROUNDS):
        solver.parameters.absolute_gap_limit = max(slack, 0.5)
        status = solver.solve(cp)
        if status in (cp_model.INFEASIBLE, cp_model.MODEL_INVALID):
            return MasterAnswer(bound=None if status == cp_model.INFEASIBLE else -np.inf, candidate=None)
        here = solver.best_objective_bound + time.base - 1e-3
        bound = here if bound is None else max(bound, here)
        if status == cp_model.UNKNOWN:
            return MasterAnswer(bound=bound, candidate=None)
        chosen = next(r for r, v in enumerate(y) if solver.value(v))
        counts = [np.array([solver.value(v) for v in row], dtype=np.int64) for row in x]
        broken = [
            (k, row, loose)
            for k, row, n in zip(links, x, counts, strict=True)
            if (loose := unreached(k.start, k.end, n, int(k.root_start[chosen])))
        ]
        if not broken:
            return MasterAnswer(bound=bound, candidate=_candidate(pool, links, chosen, counts))
        for k, row, loose in broken:
            _add_cut(cp, k, int(k.root_shared[chosen]), loose, y, row)
    return MasterAnswer(bound=bound, candidate=None)


def _links(model: Model, pool: Pool, number: int) -> _Links:
    chain = model.chains[number]
    c, values, domains = chain.chain, pool.values[1 + number], chain.chain.segment.domains
    flat = []
    for variables in (c.inputs, c.shared, c.outputs):
        state = np.zeros(values.shape[1], dtype=np.int64)
        for v in variables:
            state = state * domains[v] + values[v]
        flat.append(state)
    root = chain.states_of(pool.values[0])
    return _Links(
        start=flat[0],
        shared=flat[1],
        end=flat[2],
        root_start=root[0],
        root_shared=root[1],
        root_end=root[2],
        count=c.count,
    )


def _sum(variables: Sequence[cp_model.IntVar], where: npt.NDArray[np.signedinteger]) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.sum([variables[int(i)] for i in where])


def _add_flow(cp: cp_model.CpModel, k: _Links, y: list[cp_model.IntVar], x: list[cp_model.IntVar]) -> None:
    for s in np.unique(np.concatenate([k.shared, k.root_shared])):
        mine, roots = np.flatnonzero(k.shared == s), np.flatnonzero(k.root_shared == s)
        cp.add(_sum(x, mine) == k.count * _sum(y, roots))
        ends = (k.start[mine], k.end[mine], k.root_start[roots], k.root_end[roots])
        loop = ends[0] == ends[1]
        for q in np.unique(np.concatenate(ends)):
            leaving = _sum(x, mine[(ends[0] == q) & ~loop]) - _sum(x, mine[(ends[1] == q) & ~loop])
            cp.add(leaving == _sum(y, roots[ends[2] == q]) - _sum(y, roots[ends[3] == q]))
        for q in np.unique(ends[0][loop]):
            _add_cut(cp, k, int(s), [int(q)], y, x)


def _add_levels(
    cp: cp_model.CpModel,
    pool: Pool,
    links: list[_Links],
    y: list[cp_model.IntVar],
    x: list[list[cp_model.IntVar]],
) -> cp_model.LinearExpr:
    """Constraints (19); returns the largest transient."""
    levels = np.unique(np.concatenate([real[WORK] for real in pool.real]))
    u: list[cp_model.IntVar] = [cp.new_bool_var("") for _ in levels[1:]]
    for below, above in itertools.pairwise(u):
        cp.add_implication(above, below)
    for row, real, count in zip([y, *x], pool.real, [1, *(k.count for k in links)], strict=True):
        at = np.searchsorted(levels, real[WORK])
        for level in np.unique(at):
            if level > 0:
                cp.add(_sum(row, np.flatnonzero(at == level)) <= count * u[level - 1])
    steps = [int(n) for n in np.diff(levels)]
    return cp_model.LinearExpr.weighted_sum(u, steps) + int(levels[0])


class _Total:
    """One number summed over the chosen columns, as ``base`` + ``terms`` with smallest values taken out."""

    def __init__(
        self,
        cp: cp_model.CpModel,
        pool: Pool,
        row: int,
        links: list[_Links],
        y: list[cp_model.IntVar],
        x: list[list[cp_model.IntVar]],
    ) -> None:
        self.base = 0
        variables: list[cp_model.IntVar] = []
        weights: list[int] = []
        for real, mine, count in zip(pool.real, [y, *x], [1, *(k.count for k in links)], strict=True):
            least = int(real[row].min())
            self.base += count * least
            variables += mine
            weights += [int(n) - least for n in real[row]]
        self.terms = cp_model.LinearExpr.weighted_sum(variables, weights)


def _add_cut(
    cp: cp_model.CpModel,
    k: _Links,
    shared: int,
    loose: list[int],
    y: list[cp_model.IntVar],
    x: list[cp_model.IntVar],
) -> None:
    """Constraint (21) for the set ``loose`` of states."""
    mine = k.shared == shared
    to, of = np.isin(k.end, loose), np.isin(k.start, loose)
    starts = np.flatnonzero((k.root_shared == shared) & np.isin(k.root_start, loose))
    entering = _sum(x, np.flatnonzero(mine & to & ~of)) + _sum(y, starts)
    cp.add(k.count * entering >= _sum(x, np.flatnonzero(mine & to & of)))


def _add_hint(
    cp: cp_model.CpModel,
    pool: Pool,
    hint: Candidate,
    y: list[cp_model.IntVar],
    x: list[list[cp_model.IntVar]],
) -> None:
    parts = (((1, hint.root),), *hint.calls)
    for row, values, runs in zip([y, *x], pool.values, parts, strict=True):
        counts = np.zeros(values.shape[1], dtype=np.int64)
        for repeat, wanted in runs:
            at = np.flatnonzero((values == wanted[:, None]).all(axis=0))
            if at.size:
                counts[at[0]] += repeat
        for variable, count in zip(row, counts, strict=True):
            cp.add_hint(variable, int(count))


def _candidate(pool: Pool, links: list[_Links], chosen: int, counts: list[IntArray]) -> Candidate:
    first = pool.real[0][:, chosen]
    time, held, works = int(first[TIME]), int(first[HELD]), [int(first[WORK])]
    means = [float(first[WORK])]
    calls = []
    for k, n, values, real in zip(links, counts, pool.values[1:], pool.real[1:], strict=True):
        time += int((n * real[TIME]).sum())
        held += int((n * real[HELD]).sum())
        works.append(int(real[WORK, n > 0].max()))
        means.append(float((n * real[WORK]).sum()) / k.count)
        runs = euler_runs(k.start, k.end, n, int(k.root_start[chosen]))
        calls.append(tuple((repeat, values[:, c]) for repeat, c in runs))
    return Candidate(
        root=pool.values[0][:, chosen],
        calls=tuple(calls),
        time=time,
        held=held,
        works=tuple(works),
        mean_works=tuple(means),
    )
