"""Make (7) exact in the entries of a block's table that the relaxed optimum uses.

No mu makes max(0, H - C) linear: where an assignment with H > C and one with H < C are equally good, the
best mixture of the two is cheaper than any assignment. For the entries of a path, at fixed multipliers, the
choices that could be cheaper than the best one known are few enough to list (``columns``): the cheapest of
them, or the bound below which nothing was left out, replaces the entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopar.passes.problem import FloatArray, IntArray
from autopar.passes.solve.choice import BlockChoice, choose, lagrangian_cost
from autopar.passes.solve.columns import enumerate_columns
from autopar.passes.solve.eliminate import Run
from autopar.passes.solve.model import Model
from autopar.passes.solve.progress import Progress
from autopar.passes.solve.relax import Evaluation, Relaxation

LIMIT = 400  # choices that are listed of a chain, or the root
FINE_LIMIT = 3200  # the same, where a gap is worth more work
ROUNDS = 8


def sharpen(relaxation: Relaxation, progress: Progress, found: Evaluation, limit: int = LIMIT) -> Evaluation:
    """Evaluate again at the multipliers of ``found``, raising what is in use, for all shared states.

    Ends when (7) costs no more than the tolerance in the best of them, or after a few rounds. All that is
    learned is noted in ``progress``.
    """
    model = relaxation.model
    best = found if relaxation.here == found.multipliers else relaxation.evaluate(found.multipliers, at=found.at)
    for _ in range(ROUNDS):
        if best.slack <= progress.tolerance or progress.closed():
            break
        slip = progress.slip(best)
        near = np.flatnonzero(best.floors <= best.value + best.slack)
        raised = False
        for number in range(len(model.chains)):
            states = np.unique(model.shared_of(number, near))
            entries = sharper(model, best, number, states=states, slip=slip, limit=limit)
            if entries is not None:
                relaxation.raise_entries(number, entries.at, entries.bound, entries.better)
                raised = True
        if not raised and not _sharpen_root(relaxation, best, near, slip, limit):
            break
        before, best = best, relaxation.evaluate(found.multipliers)
        progress.note(best)
        if not np.any(best.floors > before.floors) and best.slack > 0.9 * before.slack:
            break
    return best


def _sharpen_root(relaxation: Relaxation, found: Evaluation, states: IntArray, slip: float, limit: int) -> bool:
    """Raise the floors of shared states whose root assignment (7) prices too low; False if there is none."""
    model, m = relaxation.model, found.multipliers
    runs = [run for run in found.root_runs if isinstance(run, Run)]
    if len(runs) < len(found.root_runs):
        return False
    prices, powers = m.prices(0, 1, 0.0), [p.table for p in found.powers]
    kept = np.concatenate([model.shared_values(int(at)) for at in states], axis=1)
    known = np.min([model.root_cost(prices, run.assign(kept), powers) for run in runs], axis=0)
    loose = np.flatnonzero(found.floors[states] < known - slip)
    if not loose.size:
        return False
    columns = enumerate_columns(
        runs,
        kept=kept[:, loose],
        others=-known[loose],
        start=[run.table.reshape(-1)[states[loose]] for run in runs],
        target=0.0,
        limit=limit,
        interface=sorted({v for c in model.chains for v in c.root_scope}),
        prices=prices,
    )
    bound = known[loose] + min(columns.cut, 0.0)
    cost = model.root_cost(prices, columns.values, powers)
    np.minimum.at(bound, columns.row, cost)
    better: dict[int, IntArray] = {}
    for column in np.argsort(-cost, kind="stable"):
        row = loose[columns.row[column]]
        if cost[column] < known[row]:
            better[int(states[row])] = columns.values[:, column]
    relaxation.raise_root(states[loose], bound - slip, better)
    return True


@dataclass(frozen=True, kw_only=True, eq=False)
class Sharper:
    """Lower bounds of table entries (``at``: shared, in, out, pivot) and better choices for boundaries."""

    at: tuple[IntArray, IntArray, IntArray, IntArray]
    bound: FloatArray
    better: dict[tuple[int, int, int], IntArray]


def sharper(
    model: Model, found: Evaluation, number: int, *, states: IntArray, slip: float, limit: int
) -> Sharper | None:
    """Bound the entries of chain ``number`` that ``found`` prices too low; None if there are none.

    ``states`` are the chain's shared states of interest, ``slip`` more than what rounding adds.
    """
    choice, chain, m = found.choices[number], model.chains[number], found.multipliers
    runs = [run for run in found.block_runs[number] if isinstance(run, Run)]
    loose = np.flatnonzero(choice.cost > choice.bound + slip)
    if not loose.size or len(runs) < len(found.block_runs[number]):
        return None
    table = found.tables[number]
    shared = np.repeat(states, loose.size)
    start, end = np.tile(choice.start[loose], states.size), np.tile(choice.end[loose], states.size)
    known = _known(model, found, number, shared, start, end)
    row, pivot = np.nonzero(table[shared, start, end] < known.cost[:, None] - slip)
    at = (shared[row], start[row], end[row], pivot.astype(np.int64))
    columns = enumerate_columns(
        runs,
        kept=chain.unflatten(*at),
        others=-known.cost[row],
        start=[chain.boundary(run.table)[at] for run in runs],
        target=0.0,
        limit=limit,
        interface=chain.eliminator.plan.kept,
        prices=m.prices(1 + number, chain.chain.count, 0.0),
    )
    bound = known.cost[row] + min(columns.cut, 0.0)
    cost = lagrangian_cost(m, 1 + number, chain.chain.count, columns.real)
    np.minimum.at(bound, columns.row, cost)
    better: dict[tuple[int, int, int], IntArray] = {}
    for column in np.argsort(-cost, kind="stable"):
        entry = row[columns.row[column]]
        if cost[column] < known.cost[entry]:
            better[int(shared[entry]), int(start[entry]), int(end[entry])] = columns.values[:, column]
    return Sharper(at=at, bound=bound - slip, better=better)


def _known(
    model: Model, found: Evaluation, number: int, shared: IntArray, start: IntArray, end: IntArray
) -> BlockChoice:
    return choose(
        model,
        found.multipliers,
        number,
        found.block_runs[number],
        found.tables[number],
        better=found.better[number],
        shared=shared,
        start=start,
        end=end,
    )
