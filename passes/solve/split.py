"""Solve one state after the other of what the calls of chains share.

A problem that lets calls disagree (``states.apart``) bounds every state, at a fraction of the work that all states take
at once. Only states that it cannot rule out are solved by themselves; mostly that is one. Where the first one turns out
to be much slower than that bound, calls have to agree on what most depends on, as far as that is little work.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autopar.ir.errors import IRError
from autopar.passes.problem import FloatArray, Problem, verify_numbers
from autopar.passes.solve.check import measure_assignment
from autopar.passes.solve.choice import Multipliers
from autopar.passes.solve.lagrangian import at_price, search_multipliers, tighten
from autopar.passes.solve.model import Model
from autopar.passes.solve.progress import Progress
from autopar.passes.solve.relax import Relaxation
from autopar.passes.solve.solution import Solution, Status
from autopar.passes.solve.solver import ROUNDS_PER_EFFORT, Solver
from autopar.passes.solve.states import apart, with_state

WIDE_ENTRIES = 1 << 12
"""Of a block's table over what enters, leaves and is shared: with more, states are solved one by one."""

AGREED_ENTRIES = 1 << 18
"""Of such a table where calls agree on a part of what they share."""

LOOSE = 1.01
"""A state that is slower than it was bounded by so much makes calls agree."""

APART = 2e-3
"""States that could be better by no more than this part are left alone at little effort."""


def is_wide(problem: Problem) -> bool:
    """Whether ``SplitSolver`` is less work."""
    return any(
        math.prod(chain.segment.domains[v] for v in (*chain.inputs, *chain.shared, *chain.outputs)) > WIDE_ENTRIES
        for chain in problem.chains
        if chain.shared
    )


class SplitSolver:
    """As ``Solver``."""

    def __init__(
        self, problem: Problem, *, memory_bytes: int, upper_bound_ns: int | None = None, gap: float = 1e-6,
        price: float = 0.0, most_joined: float = math.inf,
    ) -> None:  # fmt: skip
        verify_numbers(problem)
        self._most_joined = most_joined
        self._problem, self._memory_bytes, self._gap, self._price = problem, memory_bytes, gap, price
        self._above = upper_bound_ns
        self._before, self._agreed = 0, set[int]()
        self._relaxation, self._progress, self.binds = self._bounded(0)
        self._apart = {v for chain in problem.chains for v in chain.root_shared}
        self._searched = False
        self._solvers: dict[int, Solver] = {}
        self._found: dict[int, Solution] = {}
        self._tried: set[Multipliers] = set()

    @property
    def evaluations(self) -> int:
        """Eliminations so far."""
        solvers = sum(solver.evaluations for solver in self._solvers.values())
        return self._before + self._progress.model.evaluations + solvers

    @property
    def bound_ns(self) -> int:
        """What is proven so far."""
        lowest = float(self._floors().min())
        return math.ceil(lowest) if math.isfinite(lowest) else max(self._progress.bound_ns, 0)

    @property
    def free_bound_ns(self) -> int:
        """What is proven whatever memory there is."""
        free = self._progress.free.copy()
        for at, solver in self._solvers.items():
            free[at] = max(free[at], solver.free_bound_ns)
        lowest = float(free.min())
        return math.ceil(lowest) if math.isfinite(lowest) else 0

    @property
    def empty(self) -> bool:
        """Whether it is known that no assignment is allowed, whatever memory there is."""
        return self._progress.empty

    def tighten(self) -> None:
        """As ``Solver.tighten``."""
        tighten(self._relaxation, self._progress)

    def solution(self, effort: int, *, upper_bound_ns: int | None = None) -> Solution:
        """As ``Solver.solution``."""
        self._above = self._above if upper_bound_ns is None else upper_bound_ns
        self._progress.upper_bound_ns = self._above
        if not self._searched:
            at = int(self._progress.free.argmin())
            best = search_multipliers(self._relaxation, self._progress, at, self._price)
            self._price, self._searched = best.multipliers.memory or self._price, not self._progress.dominated
        spent: set[int] = set()
        for _ in range(ROUNDS_PER_EFFORT * max(effort, 1)):
            weakest = self._weakest(spent, thorough=effort > 2)
            if weakest is None:
                break
            spent.add(weakest)
            bound = float(self._progress.floors[weakest])
            found = self._found[weakest] = self._solver(weakest).solution(effort, upper_bound_ns=self._target())
            if self._apart and found.bound_ns > LOOSE * bound:
                self._agree()
            self._learn(weakest)
        return self._solution()

    def _bounded(self, entries: int) -> tuple[Relaxation, Progress, bool]:
        """All states, as far as calls may disagree, and whether the fastest of them does not fit."""
        shared = tuple(sorted({v for chain in self._problem.chains for v in chain.root_shared}))
        problem = apart(self._problem, entries, self._agreed)
        self._agreed |= {v for chain in problem.chains for v in chain.root_shared}
        model = Model(problem, shared=shared, most_joined=self._most_joined)
        relaxation = Relaxation(model)
        progress = Progress(model=model, memory_bytes=self._memory_bytes, upper_bound_ns=self._above, gap=self._gap)
        return relaxation, progress, at_price(relaxation, progress, self._price)

    def _agree(self) -> None:
        """Bound the states anew, calls agreeing on a part of what they share, another than before."""
        old, before = self._progress, len(self._agreed)
        self._before += old.model.evaluations
        self._relaxation, self._progress, _ = self._bounded(AGREED_ENTRIES)
        self._apart = self._apart - self._agreed if len(self._agreed) > before else set()
        self._progress.take_floors(old)
        self._tried.clear()

    def _solver(self, at: int) -> Solver:
        if at not in self._solvers:
            self._solvers[at] = Solver(
                with_state(self._problem, self._state(at)), memory_bytes=self._memory_bytes, gap=self._gap,
                upper_bound_ns=self._above, price=self._price, grids=self._relaxation.grids,
                most_joined=self._most_joined,
            )  # fmt: skip
        return self._solvers[at]

    def _state(self, at: int) -> dict[int, int]:
        model = self._progress.model
        return {v: int(n) for v, n in zip(model.shared, model.shared_values(at)[:, 0], strict=True)}

    def _learn(self, at: int) -> None:
        """Bound the other states at the multipliers with which this one was solved."""
        solver = self._solvers[at]
        if solver.best is None:
            return
        its = solver.best.multipliers
        self._relaxation.grids = [list(grid) for grid in solver.relaxation.grids]
        for m in (its, replace(its, time=0.0, memory=1.0)) if self._found[at].bytes > self._memory_bytes else (its,):
            if m not in self._tried:
                self._tried.add(m)
                self._progress.note(self._relaxation.evaluate(m))

    def _floors(self) -> FloatArray:
        """What is proven of each state, ns; infinite where nothing fits."""
        floors = self._progress.floors.copy()
        for at, found in self._found.items():
            floors[at] = math.inf if found.status == "infeasible" else max(floors[at], found.bound_ns)
        for at, solver in self._solvers.items():
            floors[at] = max(floors[at], solver.bound_ns)
        return floors

    def _target(self) -> int | None:
        best = self._best()
        return min((x for x in (self._above, best.objective_ns if best else None) if x is not None), default=None)

    def _best(self) -> Solution | None:
        fitting = [found for found in self._found.values() if found.found and found.bytes <= self._memory_bytes]
        return min(fitting, key=lambda found: found.objective_ns, default=None)

    def _weakest(self, spent: set[int], *, thorough: bool) -> int | None:
        """The state of lowest bound that is worth a solution of its own."""
        floors, target = self._floors(), self._target()
        if not math.isfinite(floors.min()):  # nothing fits: the leanest is shown
            return None if self._found or self._progress.empty else int(self._progress.least.argmin())
        if self._above is not None and floors.min() >= self._above:
            return None
        limit = math.inf if target is None else target * (1 - self._gap)
        # at little effort a state is looked into anew only where the bound of all hangs on it
        anew = limit if thorough else min([limit, *(floors[at] * (1 - APART) for at in self._found)])
        left = [
            at for at in range(floors.size)
            if at not in spent and (not self._found or floors[at] < (limit if at in self._found else anew))
        ]  # fmt: skip
        return min(left, key=lambda at: (floors[at], at), default=None)

    def _solution(self) -> Solution:
        floors, best = self._floors(), self._best()
        infeasible, bound = bool((floors == math.inf).all()), self.bound_ns
        if self._above is not None and bound >= self._above and not infeasible:
            status: Status = "dominated"
        elif best is not None:
            status = "optimal" if best.objective_ns - bound <= self._gap * best.objective_ns else "feasible"
        else:
            status = "infeasible" if infeasible else "unknown"
        if not self._found:
            return self._without_states(status, bound)
        shown = best or min(self._found.values(), key=lambda found: (not found.found, found.bytes))
        least = self._progress.least.copy()
        for at, found in self._found.items():
            least[at] = max(least[at], found.least_bytes)
        columns = sum(found.columns for found in self._found.values())
        at = next(at for at, found in self._found.items() if found is shown)
        root, calls = self._whole(shown, self._state(at))
        if shown.found and measure_assignment(self._problem, root, calls).objective_ns != shown.objective_ns:
            raise IRError(f"state {at} of what is shared has another objective by itself than in the whole")
        return replace(
            shown, status=status, bound_ns=bound, free_bound_ns=self.free_bound_ns, root=root, calls=calls,
            least_bytes=math.ceil(float(least.min())) if math.isfinite(least.min()) else 0,
            evaluations=self.evaluations, columns=columns,
            closed_by=("master" if columns else "elimination") if status in ("optimal", "dominated") else "none",
        )  # fmt: skip

    def _without_states(self, status: Status, bound: int) -> Solution:
        """Ruled out before any state was looked into."""
        variables = len(self._problem.root.domains) + sum(len(c.segment.domains) for c in self._problem.chains)
        return Solution(
            status=status, found=False, objective_ns=0, bound_ns=bound, free_bound_ns=self.free_bound_ns, bytes=0,
            transient_bytes=0, least_bytes=self._progress.least_bytes, root=(), calls=(), columns=0,
            evaluations=self.evaluations, variables=variables, price=self._price, closed_by="elimination",
        )  # fmt: skip

    def _whole(
        self, found: Solution, state: dict[int, int]
    ) -> tuple[tuple[int, ...], tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]]:
        """The assignment in the problem that was given."""
        if not found.found:
            return found.root, found.calls
        calls = []
        for chain, runs in zip(self._problem.chains, found.calls, strict=True):
            inner = {v: state[r] for v, r in zip(chain.shared, chain.root_shared, strict=True)}
            calls.append(tuple((repeat, tuple(inner.get(v, n) for v, n in enumerate(row))) for repeat, row in runs))
        return found.root, tuple(calls)
