"""The whole search: meshes, pipelines and microbatches outside, everything else by elimination inside.

Every outer choice is bounded with memory ignored, cheaply first; the best bound is worked out next, until no bound is
below the best objective. More microbatches never cost less time in the built-in cost model (every price is a start
plus a rate), so their number grows only where memory costs time; a profile with its own functions gets
every number tried.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autopar.cost_model import Cluster, CostProfile, optimizer_state_bytes
from autopar.ir.errors import LimitReachedError, UnsupportedError
from autopar.ir.program import Parameter
from autopar.passes.assignment import decode
from autopar.passes.bounds import UNLIMITED_BYTES, Bounds
from autopar.passes.build import Encoded, Model
from autopar.passes.extents import extents, layers
from autopar.passes.found import Found, Limits
from autopar.passes.outer import Candidate, Rung, outer_candidates
from autopar.passes.pipelining import Arrangement, Shape, arrange
from autopar.passes.positions import positions
from autopar.passes.pricing import Pricing
from autopar.passes.problem import Problem
from autopar.passes.settled import peak_bytes, settled
from autopar.passes.shortfall import Closest, floor_bytes, shortfall
from autopar.passes.solve import Solution, solve
from autopar.passes.stage_account import copies_bytes
from autopar.passes.uniform import uniform
from autopar.passes.units import units_of

# Leaner placements that are tried for one candidate before it is taken not to fit.
LEANER = 8
# A candidate that may be faster than the best by this factor is worked out at once.
DIVE = 1.01


@dataclass(frozen=True, eq=False)
class _Best:
    candidate: Candidate
    solution: Solution
    encoded: Encoded
    pricing: Pricing
    objective_ns: int
    cut: Arrangement | None = None


@dataclass(eq=False)
class _Search:
    bounds: Bounds
    limits: Limits
    progress: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)
    best_ns: float = 0.0  # of the best, with its handicap
    best: _Best | None = None
    closest: Closest | None = None
    least_bytes: int = UNLIMITED_BYTES  # that any plan was proven to need
    hopeless: bool = False  # parameters alone are too many
    encoded: dict[Candidate, tuple[Encoded, Pricing]] = field(default_factory=dict)
    price: float = 0.0  # of memory, where it last bound: candidates are alike
    complete: bool = True
    proven: list[int] = field(default_factory=list)

    def _promising(self, candidate: Candidate) -> bool:
        """Whether a candidate may be better by so much that finding out now saves work on others."""
        return self.best is None or candidate.rank[0] * DIVE < self.best_ns

    def settle(self, candidate: Candidate) -> tuple[Candidate | None, int | None]:
        """Solve one candidate within memory: by elimination alone, and when it is its turn again by all means.

        Returns it with its new bound if it may still become better, and what bounds more microbatches, None if these
        do no better.
        """
        thorough = candidate.rung == Rung.LIMITED
        encoded = self.encoded.pop(candidate, None) or self.bounds.encode(candidate, None)
        if encoded is None:
            return None, None
        problem, budget = encoded[0].problem, self.limits.memory_bytes
        above = int(self.best_ns / candidate.handicap) if self.best else None
        bound, done, ruled_out = 0, thorough, False
        for attempt in range(LEANER):
            solution = self._solve(problem, budget, above=above, effort=int(thorough))
            if thorough and solution.status == "feasible" and (above is None or solution.objective_ns <= above):
                solution = self._solve(problem, budget, above=above, effort=2)
            if attempt == 0:
                bound = solution.bound_ns if solution.status != "unknown" else candidate.bound_ns
                ruled_out = solution.status == "infeasible"
                done = done or solution.status in ("optimal", "dominated", "infeasible")
            fits = (
                solution.found
                and solution.status in ("optimal", "feasible", "dominated")
                and solution.bytes <= budget
            )
            over = self._peak(encoded, candidate, solution) - self.limits.memory_bytes if solution.found else 0
            if not fits or over <= 0:
                break
            budget, fits = solution.bytes - over, False  # the sum is too small by what the walk finds
            if not thorough:
                done = False
                break
        if over > 0:
            solution = replace(solution, bytes=self.limits.memory_bytes + over)
        if fits and (above is None or solution.objective_ns < above):
            self._take(candidate, _Best(candidate, solution, *encoded, solution.objective_ns))
        self._near(Closest(candidate, solution, *encoded, solution.bytes), solution.least_bytes)
        last = fits and solution.closed_by == "elimination" and solution.bound_ns <= candidate.bound_ns
        more = None if last else solution.free_bound_ns
        if done:
            self.proven += [] if ruled_out else [bound]
            return None, more
        again = replace(candidate, rung=Rung.LIMITED, bound_ns=max(bound, candidate.bound_ns), more=())
        self.encoded[again] = encoded
        return again, more

    def _solve(self, problem: Problem, budget: int, *, above: int | None = None, effort: int) -> Solution:
        found = solve(problem, memory_bytes=budget, upper_bound_ns=above, effort=effort, price=self.price)
        self.bounds.evaluations += found.evaluations
        self.price = found.price or self.price
        return found

    def _peak(self, encoded: tuple[Encoded, Pricing], candidate: Candidate, solution: Solution) -> int:
        return peak_bytes(self.bounds, encoded, candidate, solution, enough=self.limits.memory_bytes)

    def limited(self, candidate: Candidate, shape: Shape) -> Candidate | None:
        """A pipeline with the bound within the memory of all its places, each holding as little as the last one.

        None where even that is too much.
        """
        live = max(1, int(shape.live(shape.stages - 1)))
        made = self.bounds.encode(candidate, shape.schedule, live=live)
        if made is None:
            return None
        share = shape.stretch / shape.places * candidate.handicap
        above = int(self.best_ns / share) if self.best else None
        solution = self._solve(made[0].problem, self.limits.memory_bytes * shape.places, above=above, effort=0)
        if solution.status == "infeasible":
            self._near_pipeline(candidate, shape, solution, made)
            return None
        bound = solution.bound_ns if solution.status != "unknown" else 0
        return replace(candidate, rung=Rung.LIMITED, bound_ns=max(candidate.bound_ns, bound))

    def settle_pipeline(self, candidate: Candidate, shape: Shape) -> None:
        """Place the model for one stage's devices within the memory of all stages, then cut it.

        Every call is taken to hold as many microbatches as the first stage does. A cut that does not fit asks for a
        leaner placement. What is proven is the candidate's bound.
        """
        self.proven.append(int(candidate.step_bound_ns))
        made = [self.bounds.encode(candidate, shape.schedule, live=n) for n in (shape.most_live, 0, 1)]
        if made[0] is None or made[1] is None or made[2] is None:
            return
        encoded, (lean, _), (full, _) = made[0], made[1], made[2]
        model, budget = self.bounds.model_for(shape.schedule), self.limits.memory_bytes * shape.places
        for _ in range(LEANER):
            solution = self._solve(encoded[0].problem, budget, effort=1)
            if not solution.found or solution.bytes > budget:
                self._near_pipeline(candidate, shape, solution, encoded)
                return
            solution = uniform(encoded[0].problem, solution, budget)
            _, program = settled(self.bounds, encoded, candidate, solution)
            calls = sum(count for node in lean.calls if isinstance(count := node.attr("count"), int))
            units = units_of(model, program, solution, lean, full, anywhere=calls < shape.stages)
            cut = arrange(units, shape, encoded[1], self.limits.memory_bytes)
            if cut is not None:
                copies = copies_bytes(program, cut.marks, shape, self._state_bytes)
                cut = replace(cut, bytes=tuple(a + b for a, b in zip(cut.bytes, copies, strict=True)))
            if cut is not None and max(cut.bytes) <= self.limits.memory_bytes:
                if self.best is None or cut.objective_ns * candidate.handicap < self.best_ns:
                    self._take(candidate, _Best(candidate, solution, *encoded, cut.objective_ns, cut))
                return
            if len(units) < shape.stages:
                self.bounds.refused = UnsupportedError(
                    f"{shape.stages} pipeline stages, but the model has only {len(units)} parts to cut it into"
                )
                return
            self._near_pipeline(candidate, shape, solution, encoded)
            budget = int(min(budget, solution.bytes) * 0.93)

    def _near(self, found: Closest, least_bytes: int) -> None:
        """Remember a placement that did not fit, by what it needs of one place."""
        self.least_bytes = min(self.least_bytes, least_bytes)
        if self.closest is None or found.bytes < self.closest.bytes:
            self.closest = found

    def _near_pipeline(
        self, candidate: Candidate, shape: Shape, solution: Solution, encoded: tuple[Encoded, Pricing]
    ) -> None:
        share = -(-solution.bytes // shape.places)
        self._near(Closest(candidate, solution, *encoded, share), solution.least_bytes // shape.places)

    def _state_bytes(self, parameter: Parameter) -> int:
        local, settings = parameter.layout.local_shape(parameter.type.shape), self.bounds.model.settings
        return optimizer_state_bytes(settings.optimizer, local, parameter.type.dtype, self.bounds.profile)

    def _take(self, candidate: Candidate, best: _Best) -> None:
        self.best, self.best_ns = best, best.objective_ns * candidate.handicap

    def _tell(self, candidate: Candidate, left: int) -> None:
        """How far the search is, about to look into ``candidate``, of least bound."""
        best = "no plan yet"
        if self.best is not None:
            best = f"best {self.best.objective_ns / 1e9:.4g} s by mesh({self.best.candidate.full})"
        self.progress(
            f"{self.bounds.problems} problems worked out, {left} candidates left, {best}, bound "
            f"{candidate.step_bound_ns / 1e9:.4g} s"
        )

    def failure(self) -> Exception:
        """Why there is no plan."""
        budget, closest = self.limits.memory_bytes, self.closest
        if closest is None:
            return self.bounds.refused or LimitReachedError(
                "the time limit ended the search before any plan was found"
            )
        if closest.solution.status == "unknown":
            return LimitReachedError(
                f"no plan was found within the limits of effort; closest was mesh({closest.candidate.full}) at "
                f"{closest.bytes / 1e9:.4g} GB a device, {budget / 1e9:.4g} GB may be used: raise the memory budget"
            )
        model, encoded = self.bounds.model_for(closest.candidate.schedule), (closest.encoded, closest.pricing)
        placed, program = settled(self.bounds, encoded, closest.candidate, closest.solution)
        return shortfall(model, closest, placed, program, max(self.least_bytes, budget + 1), budget)

    def run(self, candidates: list[Candidate], *, hooked: bool) -> None:
        """Best bound first; ends when no bound is below the best objective."""
        waiting = [(candidate.rank, number, candidate) for number, candidate in enumerate(candidates)]
        heapq.heapify(waiting)
        numbers = itertools.count(len(waiting))

        def wait(candidate: Candidate | None) -> None:
            if candidate is not None:
                heapq.heappush(waiting, (candidate.rank, next(numbers), candidate))

        while waiting:
            candidate = heapq.heappop(waiting)[2]
            self._tell(candidate, len(waiting) + 1)
            late = time.monotonic() - self.started > self.limits.time_limit_s
            if self.hopeless and self.closest is not None:
                return
            if self.best is not None and (candidate.rank[0] >= self.best_ns or late):
                self.complete = not late
                self.proven += [int(left.step_bound_ns) for left in (candidate, *(c for *_, c in waiting))]
                return
            if candidate.rung < Rung.OWN:
                wait(self.bounds.raised(candidate))
            elif candidate.shape is not None and candidate.rung == Rung.OWN:
                wait(self.limited(candidate, candidate.shape))
            elif candidate.shape is not None:
                self.settle_pipeline(candidate, candidate.shape)
            else:
                again, more = self.settle(candidate)
                if again is not None and candidate.rung == Rung.OWN and self._promising(again):
                    again, _ = self.settle(again)
                wait(again)
                if more is not None or hooked:
                    wait(_with_more(candidate, more or 0, hooked=hooked))


def search(
    model: Model, cluster: Cluster, profile: CostProfile, limits: Limits, *,
    progress: Callable[[str], None] = lambda _: None,
) -> Found:  # fmt: skip
    """The fastest plan within the limits.

    Raises InfeasibleError with what is needed against what there is, LimitReachedError if the time ran out
    before any plan was found, UnsupportedError naming the node where the arguments leave no legal placement.
    """
    marks = positions(model.graph, model.rules, model.settings.inputs)
    bounds = Bounds(model=model, cluster=cluster, profile=profile, positions=marks, searched=limits.mesh is None)
    state = _Search(bounds, limits, progress)
    floor = floor_bytes(model, cluster.world_size, profile)
    if floor > limits.memory_bytes:
        state.hopeless, state.least_bytes = True, floor
    candidates = outer_candidates(limits, cluster.world_size, *extents(model), layers(model))
    state.run(candidates, hooked=profile.has_compute_hook or profile.has_collective_hook)
    if state.best is None:
        raise state.failure()
    best = state.best
    solution, candidate = best.solution, best.candidate
    objective_ns = best.objective_ns
    if best.cut is None:
        alike = uniform(best.encoded.problem, solution, limits.memory_bytes)
        if state._peak((best.encoded, best.pricing), candidate, alike) <= limits.memory_bytes:
            solution, objective_ns = alike, alike.objective_ns
    planned = bounds.model_for(candidate.schedule)
    return Found(
        model=planned, mesh=candidate.mesh, full=candidate.full, objective_ns=objective_ns,
        pipeline=None if best.cut is None or candidate.shape is None else (candidate.shape, best.cut),
        microbatches=candidate.count, pricing=best.pricing, encoded=best.encoded, solution=solution,
        assignment=decode(planned, best.encoded, solution, best.pricing.mesh),
        bound_ns=min(*state.proven, objective_ns), complete=state.complete, evaluations=bounds.evaluations,
        candidates=bounds.problems, variables=solution.variables,
    )  # fmt: skip


def _with_more(candidate: Candidate, bound_ns: int, *, hooked: bool) -> Candidate | None:
    """With more microbatches, which never cost less time unless prices are the user's own; None if there are none."""
    if not candidate.more:
        return None
    first, *more = candidate.more
    larger = replace(candidate, count=first, more=tuple(more))
    if hooked:
        return replace(larger, rung=Rung.FEWEST, bound_ns=0)
    return replace(larger, bound_ns=max(larger.bound_ns, bound_ns))
