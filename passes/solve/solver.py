"""One problem, solved as a whole: elimination, search of multipliers, then rounds of columns and master."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autopar.ir.errors import IRError
from autopar.passes.problem import Problem, verify_numbers
from autopar.passes.solve.check import measure_assignment
from autopar.passes.solve.choice import Candidate
from autopar.passes.solve.lagrangian import at_price, search_multipliers, tighten
from autopar.passes.solve.master import solve_master
from autopar.passes.solve.model import Model
from autopar.passes.solve.pool import gather, with_candidates
from autopar.passes.solve.progress import CLOSE, Progress
from autopar.passes.solve.relax import Evaluation, Relaxation
from autopar.passes.solve.sharpen import FINE_LIMIT, sharpen
from autopar.passes.solve.solution import CallRuns, Solution, Status

EFFORT_LIMITS = ((64, 64, 0.05), (1000, 400, 0.3), (6000, 1500, 2.0), (32000, 4000, 20.0))
"""Per level of effort: most partial and most whole columns of a segment, deterministic time of the master."""

ROUNDS_PER_EFFORT = 3
"""Most shared states times levels that are looked into, per level of effort."""


class Solver:
    """One problem within one limit, to which more effort may be given later; arguments as those of ``solve``.

    ``grids``: of mu, where a like problem is solved. ``binds``: whether the fastest assignment does not fit in memory.
    """

    def __init__(
        self, problem: Problem, *, memory_bytes: int, upper_bound_ns: int | None = None, gap: float = 1e-6,
        price: float = 0.0, grids: Sequence[Sequence[float]] = (), most_joined: float = math.inf,
    ) -> None:  # fmt: skip
        verify_numbers(problem)
        self.model = Model(problem, most_joined=most_joined)
        self._progress = Progress(
            model=self.model, memory_bytes=memory_bytes, upper_bound_ns=upper_bound_ns, gap=gap
        )
        self.relaxation = Relaxation(self.model)
        self.relaxation.grids = [list(grid) for grid in grids] or self.relaxation.grids
        self.binds = at_price(self.relaxation, self._progress, price)
        self._price = price
        self._searched: set[int] = set()
        self._paused: set[int] = set()  # shared states whose search the upper bound ended
        self.best: Evaluation | None = None
        self._levels = [0] * self._progress.floors.size
        self._columns = 0
        self._fine = False  # whether more was listed to make (7) exact

    @property
    def evaluations(self) -> int:
        """Eliminations so far."""
        return self.model.evaluations

    @property
    def bound_ns(self) -> int:
        """What is proven so far."""
        return self._progress.bound_ns if not self._progress.empty else 0

    @property
    def free_bound_ns(self) -> int:
        """What is proven whatever memory there is."""
        return self._progress.free_bound_ns

    @property
    def empty(self) -> bool:
        """Whether it is known that no assignment is allowed, whatever memory there is."""
        return self._progress.empty

    def tighten(self) -> None:
        """Raise the bound that ignores memory by what little work tells."""
        tighten(self.relaxation, self._progress)

    def solution(self, effort: int, *, upper_bound_ns: int | None = None) -> Solution:
        """The best after so many rounds, those of earlier calls counted; the upper bound may be another than before."""
        progress, levels = self._progress, self._levels
        progress.upper_bound_ns = progress.upper_bound_ns if upper_bound_ns is None else upper_bound_ns
        for _ in range(ROUNDS_PER_EFFORT * max(effort, 1)):
            at = _weakest(progress, levels, effort)
            if at is None:
                break
            best = self.best
            near = best is not None and (at in self._searched or best.near(at))
            if best is None or not near or not self._paused.isdisjoint((at, best.at)):
                best = search_multipliers(self.relaxation, progress, at, self._price)
                (self._paused if progress.dominated else self._searched).add(at)
                self._paused -= self._searched
                self._price = best.multipliers.memory or self._price
            if effort and not self._fine and best.slack > CLOSE * progress.bound_ns:
                best, self._fine = sharpen(self.relaxation, progress, best, FINE_LIMIT), True
            if best.at != at:
                best = self.relaxation.evaluate(best.multipliers, at=at)
                progress.note(best)
            self.best = best
            if effort == 1 and self._columns and progress.close(at):
                levels[at] += 1
            elif levels[at] < effort and not progress.closed():
                self._columns = _improve(progress, best, *EFFORT_LIMITS[levels[at]])
                levels[at] += 1
            elif not effort:
                levels[at] += 1
        if not effort:  # nothing was spent on columns yet
            self._levels = [0] * len(levels)
        return _solution(progress, self._columns, self.best.multipliers.memory if self.best is not None else 0.0)


def _weakest(progress: Progress, levels: list[int], effort: int) -> int | None:
    """The shared state of lowest bound that is worth another round."""
    target = math.inf if progress.target is None else progress.target - progress.tolerance
    left = [at for at, level in enumerate(levels) if level < max(effort, 1) and progress.floors[at] < target]
    return None if progress.closed() else min(left, key=lambda at: (progress.floors[at], at), default=None)


def _improve(progress: Progress, best: Evaluation, limit: int, most: int, work: float) -> int:
    """One round of columns and master for the shared state of ``best``; returns the number of columns."""
    slip = progress.slip(best)
    target = claim = math.inf
    if progress.target is not None:
        claim = progress.target - max(progress.tolerance, 1.0) + slip + 0.01
        target = claim + slip
    model, known = progress.model, progress.incumbent
    pool = gather(model, best, memory_bytes=progress.memory_bytes, target=target, limit=limit, most=most)
    here = [c for c in progress.seen if model.shared_state(c.root) == best.at]
    pool = with_candidates(model, pool, here)
    answer = solve_master(
        model,
        pool,
        memory_bytes=progress.memory_bytes,
        hint=known if known is not None and model.shared_state(known.root) == best.at else None,
        below=None if math.isinf(target) else math.floor(target),
        slack=progress.tolerance,
        work=work,
    )
    if answer.candidate is not None:
        progress.offer(answer.candidate)
    proven = math.inf if answer.bound is None else answer.bound
    progress.raise_floor(best.at, min(pool.cut - slip, claim, proven))
    return pool.size()


def _solution(progress: Progress, columns: int, price: float) -> Solution:
    model, best = progress.model, progress.incumbent
    if progress.empty:
        status: Status = "infeasible"
    elif progress.dominated:
        status = "dominated"
    elif best is not None:
        status = "optimal" if progress.closed() else "feasible"
    else:
        status = "infeasible" if progress.infeasible() else "unknown"
    shown = best if best is not None else progress.leanest
    variables = len(model.problem.root.domains) + sum(len(c.segment.domains) for c in model.problem.chains)
    root, calls = _plain(shown)
    totals = measure_assignment(model.problem, root, calls) if shown is not None else None
    if shown is not None and totals is not None:
        claimed = (shown.time, shown.memory, max(shown.works))
        if claimed != (totals.objective_ns, totals.bytes, totals.transient_bytes):
            raise IRError(f"solver and checker disagree: {claimed} against {totals}")
    if best is not None and progress.bound_ns > best.time and status != "dominated":
        raise IRError(f"the bound {progress.bound_ns} ns is above the objective {best.time} ns")
    return Solution(
        status=status,
        found=shown is not None,
        objective_ns=totals.objective_ns if totals is not None else 0,
        bound_ns=progress.bound_ns if not progress.empty else 0,
        free_bound_ns=progress.free_bound_ns,
        bytes=totals.bytes if totals is not None else 0,
        transient_bytes=totals.transient_bytes if totals is not None else 0,
        least_bytes=progress.least_bytes,
        root=root,
        calls=calls,
        evaluations=model.evaluations,
        variables=variables,
        columns=columns,
        price=price,
        closed_by=("master" if columns else "elimination") if progress.closed() else "none",
    )


def _plain(candidate: Candidate | None) -> tuple[tuple[int, ...], tuple[CallRuns, ...]]:
    if candidate is None:
        return (), ()
    calls = tuple(
        tuple((repeat, tuple(int(n) for n in np.asarray(values))) for repeat, values in runs)
        for runs in candidate.calls
    )
    return tuple(int(n) for n in candidate.root), calls
