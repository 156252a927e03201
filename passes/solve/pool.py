"""Gather the columns of every segment at one evaluation: what the master chooses from.

The cost of everything else (10): for the root's columns nothing, since the chains stand in the root's
elimination as tables; for a call forced to go from one state to another the root, the other chains and the
best other calls, which ``chain.through`` finds for all pairs of states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopar.passes.problem import FloatArray, IntArray
from autopar.passes.solve.chain import through
from autopar.passes.solve.choice import AnyRun, Candidate
from autopar.passes.solve.columns import Columns, enumerate_columns
from autopar.passes.solve.eliminate import Run
from autopar.passes.solve.model import Model, amounts
from autopar.passes.solve.plan import Plan
from autopar.passes.solve.relax import Evaluation


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Columns of the root and of each chain: values (variables, E) and amounts (3, E).

    No solution cheaper than ``min(cut, target)`` holds a column that is not here.
    """

    values: tuple[IntArray, ...]
    real: tuple[IntArray, ...]
    cut: float

    def size(self) -> int:
        """The number of columns."""
        return sum(real.shape[1] for real in self.real)


def gather(
    model: Model, found: Evaluation, *, memory_bytes: int, target: float, limit: int, most: int
) -> Pool:
    """List the columns that a solution cheaper than ``target`` may hold, at most ``most`` a segment.

    Only columns with the shared state of ``found`` are listed. ``limit`` is the most partial columns that are
    kept on the way.
    """
    paid = found.multipliers.memory * memory_bytes
    extras = found.extras(model)
    lists = [
        _columns(
            model.root.plan,
            found.root_runs,
            kept=model.shared_values(found.at),
            others=np.full(1, -paid),
            target=target,
            limit=limit,
            interface=sorted({v for c in model.chains for v in c.root_scope}),
        )
    ]
    for number, chain in enumerate(model.chains):
        shared = int(model.shared_of(number, np.array([found.at]))[0])
        others = _others(model, found, number, extras)[shared] - paid
        total = found.tables[number][shared] + others.T[:, :, None]
        start, end, pivot = (x.astype(np.int64) for x in np.nonzero(total < target))
        lists.append(
            _columns(
                chain.eliminator.plan,
                found.block_runs[number],
                kept=chain.unflatten(np.full_like(start, shared), start, end, pivot),
                others=others[end, start],
                target=target,
                limit=limit,
                interface=chain.eliminator.plan.kept,
            )
        )
    lists = [c.lowest(most) for c in lists]
    return Pool(
        values=tuple(c.values for c in lists),
        real=tuple(c.real for c in lists),
        cut=min(c.cut for c in lists),
    )


def _others(model: Model, found: Evaluation, number: int, extras: list[FloatArray]) -> FloatArray:
    """For each (shared, out, in) the cost of all but one call from in to out of chain ``number``."""
    chain = model.chains[number]
    model.evaluations += 1
    run = model.rest(number).run(
        found.multipliers.prices(0, 1, found.root_mu), [x for i, x in enumerate(extras) if i != number]
    )
    return through(found.tables[number].min(axis=3), chain.from_root(run.table), chain.chain.count)


def _columns(
    plan: Plan,
    runs: tuple[AnyRun, ...],
    *,
    kept: IntArray,
    others: FloatArray,
    target: float,
    limit: int,
    interface: list[int] | tuple[int, ...],
) -> Columns:
    start = [np.asarray(run.table[tuple(kept)]).reshape(-1) for run in runs]
    whole = [run for run in runs if isinstance(run, Run)]
    if len(whole) == len(runs):
        return enumerate_columns(
            whole,
            kept=kept,
            others=others,
            start=start,
            target=target,
            limit=limit,
            interface=interface,
        )
    bound = np.stack(start).max(axis=0) + others
    rows = np.argsort(bound, kind="stable")[:limit].astype(np.int64)
    values = runs[0].assign(kept[:, rows])
    real = amounts(plan.measure(values))
    return Columns(
        values=values, real=real, bound=bound[rows], row=rows, cut=float(bound.min(initial=np.inf))
    )


def with_candidates(model: Model, pool: Pool, candidates: list[Candidate]) -> Pool:
    """Add the columns of known assignments, so that the master can do no worse than they."""
    values, real = list(pool.values), list(pool.real)
    for segment, plan in enumerate(model.plans()):
        more = (
            [c.root for c in candidates]
            if segment == 0
            else [v for c in candidates for _, v in c.calls[segment - 1]]
        )
        if more:
            every = np.concatenate([values[segment], np.stack(more, axis=1)], axis=1)
            first = np.sort(np.unique(every, axis=1, return_index=True)[1]) if every.size else np.array([0])
            values[segment] = every[:, first]
            real[segment] = amounts(plan.measure(values[segment]))
    return Pool(values=tuple(values), real=tuple(real), cut=pool.cut)
