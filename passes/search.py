"""The whole search: meshes and microbatches outside, everything else by elimination inside.

Every mesh is bounded with memory ignored, then the best bound is solved first until no bound is below the
best objective. More microbatches never cost less time in the built-in cost model (every price is a start
plus a rate), so their number grows only where memory costs time; a profile with its own functions gets
every number tried.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autopar.cost_model import Cluster, CostProfile, axis_groups
from autopar.ir.errors import InfeasibleError, LimitReachedError, UnsupportedError
from autopar.ir.mesh import Mesh
from autopar.passes.assignment import Assignment, decode
from autopar.passes.build import Encoded, Model, build
from autopar.passes.candidate import with_time
from autopar.passes.candidates import (
    MIXED_AXIS,
    fitting,
    microbatch_counts,
    mixed_meshes,
    pinned_meshes,
    searched_meshes,
)
from autopar.passes.positions import Positions, positions
from autopar.passes.pricing import Pricing
from autopar.passes.solve import Solution, solve
from autopar.passes.uniform import uniform

UNLIMITED_BYTES = 10**15
# Axes bound to the batch or to parameters make plans that are easier to read: one that is bound to nothing must be
# faster by this factor. What it could have gained counts in the gap.
MIXED_PAYS = 0.99


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the search may use. ``mesh`` pins axes (None: searched), ``microbatches`` their number."""

    memory_bytes: int
    mesh: Mapping[str, int] | None = None
    microbatches: int | None = None
    time_limit_s: float = 60.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The best plan and what was proven about all others. ``complete``: no candidate was left out."""

    mesh: Mesh
    microbatches: int
    pricing: Pricing
    encoded: Encoded
    solution: Solution
    assignment: Assignment
    bound_ns: int
    complete: bool
    evaluations: int
    candidates: int
    variables: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Candidate:
    """One mesh with a number of microbatches; ``bound_ns`` holds for it and for all larger numbers.

    ``handicap``: what its times are multiplied with when they are compared.
    """

    bound_ns: int
    mesh: Mesh
    count: int
    more: tuple[int, ...]
    handicap: float = 1.0


@dataclass(eq=False)
class _Search:
    model: Model
    cluster: Cluster
    profile: CostProfile
    limits: Limits
    found: Positions
    progress: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)
    best_ns: float = 0.0  # of the best, with its handicap
    best: tuple[Solution, Encoded, Pricing, Mesh, int] | None = None
    closest: tuple[Solution, Mesh, int] | None = None
    refused: UnsupportedError | InfeasibleError | None = None
    evaluations: int = 0
    candidates: int = 0
    complete: bool = True
    bounds: list[int] = field(default_factory=list)

    def encode(self, mesh: Mesh, count: int, *, ample: bool = False) -> tuple[Encoded, Pricing] | None:
        """The candidate's problem; None if the model cannot be placed so (``refused`` says why)."""
        self.candidates += 1
        groups = axis_groups(mesh.axes, self.cluster)
        pricing = Pricing(
            mesh=with_time(mesh, count), cluster=self.cluster, profile=self.profile, groups=groups
        )
        try:
            return build(self.model, self.found, pricing, count, ample=ample), pricing
        except (UnsupportedError, InfeasibleError) as error:
            self.refused = error
            return None

    def bounded(self, mesh: Mesh, counts: tuple[int, ...]) -> _Candidate | None:
        """The first number of microbatches with its bound, memory ignored."""
        encoded = self.encode(mesh, counts[0], ample=True)
        if encoded is None:
            return None
        free = solve(encoded[0].problem, memory_bytes=UNLIMITED_BYTES, effort=0)
        self.evaluations += free.evaluations
        if not free.found:
            self.refused = UnsupportedError(
                f"no placement is legal on mesh({mesh}) with {counts[0]} microbatch(es): some value is needed in a "
                "layout that nothing leads to, such as of the whole batch while only a microbatch is at hand"
            )
            return None
        handicap = 1 / MIXED_PAYS if self.limits.mesh is None and MIXED_AXIS in mesh.names else 1.0
        return _Candidate(bound_ns=free.bound_ns, mesh=mesh, count=counts[0], more=counts[1:], handicap=handicap)

    def settle(self, candidate: _Candidate) -> bool:
        """Solve one candidate under the memory limit; True if more microbatches may do better."""
        encoded = self.encode(candidate.mesh, candidate.count)
        if encoded is None:
            return False
        problem, budget = encoded[0].problem, self.limits.memory_bytes
        above = int(self.best_ns / candidate.handicap) if self.best else None
        solution = solve(problem, memory_bytes=budget, upper_bound_ns=above, effort=1)
        if solution.status == "feasible" and (above is None or solution.objective_ns <= above):
            solution = solve(problem, memory_bytes=budget, upper_bound_ns=above, effort=2)
        self.evaluations += solution.evaluations
        if solution.status not in ("infeasible", "unknown"):
            self.bounds.append(solution.bound_ns)
        fits = (
            solution.found
            and solution.status in ("optimal", "feasible", "dominated")
            and solution.bytes <= budget
        )
        if fits and (above is None or solution.objective_ns < above):
            self.best = solution, *encoded, candidate.mesh, candidate.count
            self.best_ns = solution.objective_ns * candidate.handicap
            self.progress(f"mesh({candidate.mesh}) × {candidate.count}: {solution.objective_ns / 1e9:.4g} s")
        if self.closest is None or solution.bytes < self.closest[0].bytes:
            self.closest = solution, candidate.mesh, candidate.count
        return not (fits and solution.closed_by == "elimination" and solution.bound_ns <= candidate.bound_ns)

    def run(self, candidates: list[_Candidate], *, hooked: bool) -> None:
        """Best bound first; ends when no bound is below the best objective."""
        waiting = list(candidates)
        while waiting:
            waiting.sort(key=lambda c: (c.bound_ns * c.handicap, c.mesh.axes, c.count))
            candidate = waiting.pop(0)
            if self.best is not None:
                late = time.monotonic() - self.started > self.limits.time_limit_s
                if candidate.bound_ns * candidate.handicap >= self.best_ns or late:
                    self.complete = not late
                    self.bounds += [left.bound_ns for left in (candidate, *waiting)]
                    return
            if (self.settle(candidate) or hooked) and candidate.more:
                larger = self.bounded(candidate.mesh, candidate.more)
                if larger is not None:
                    waiting.append(larger)


def search(
    model: Model, cluster: Cluster, profile: CostProfile, limits: Limits, *,
    progress: Callable[[str], None] = lambda _: None,
) -> Found:  # fmt: skip
    """The fastest plan within the limits.

    Raises InfeasibleError with what is needed against what there is, LimitReachedError if the time ran out
    before any plan was found, UnsupportedError naming the node where the arguments leave no legal placement.
    """
    inputs = model.settings.inputs
    state = _Search(model, cluster, profile, limits, positions(model.graph, model.rules, inputs), progress)
    batch, sequence = _extents(model)
    world = cluster.world_size
    tried = pinned_meshes(limits.mesh, world) if limits.mesh is not None else itertools.chain(
        searched_meshes(world, batch or 1, sequence), mixed_meshes(world, batch or 1)
    )  # fmt: skip
    meshes = fitting(tried, batch, sequence, limits.microbatches)
    found = []
    for mesh in meshes:
        counts = (
            microbatch_counts(batch or 1, mesh.size("dp") * mesh.size(MIXED_AXIS))
            if limits.microbatches is None
            else (limits.microbatches,)
        )
        candidate = state.bounded(mesh, counts)
        if candidate is not None:
            found.append(candidate)
    state.run(found, hooked=profile.has_compute_hook or profile.has_collective_hook)
    if state.best is None:
        raise _failure(state)
    solution, encoded, pricing, mesh, count = state.best
    solution = uniform(encoded.problem, solution, limits.memory_bytes)
    return Found(
        mesh=mesh, microbatches=count, pricing=pricing, encoded=encoded, solution=solution,
        assignment=decode(model, encoded, solution, pricing.mesh),
        bound_ns=min(*state.bounds, solution.objective_ns), complete=state.complete, evaluations=state.evaluations,
        candidates=state.candidates, variables=solution.variables,
    )  # fmt: skip


def _extents(model: Model) -> tuple[int | None, int | None]:
    """Global batch and sequence length, by the inputs."""
    shapes = {str(node.attr("name")): node.result.type.shape for node in model.graph.sources("input")}
    dims = [(shapes[name], dim) for name, dim in model.settings.inputs.items() if name in shapes]
    batch = next((shape[b] for shape, (b, _) in dims if b is not None), None)
    return batch, next((shape[s] for shape, (_, s) in dims if s is not None), None)


def _failure(state: _Search) -> Exception:
    if state.closest is None:
        return state.refused or LimitReachedError("the time limit ended the search before any plan was found")
    solution, mesh, count = state.closest
    budget = state.limits.memory_bytes
    if solution.status == "unknown":
        return LimitReachedError(
            f"no plan was found within the limits of effort for mesh({mesh}); raise the memory budget"
        )
    needed = max(solution.least_bytes, budget + 1)
    return InfeasibleError(
        f"every plan needs more than {needed / 1e9:.4g} GB on each device, "
        f"{budget / 1e9:.4g} GB may be used.\n"
        f"  closest: mesh({mesh}) with {count} microbatch(es) at {solution.bytes / 1e9:.4g} GB\n"
        f"  what fits: --memory-budget {-(-solution.bytes // 10**6)}MB, more devices, or an optimizer with less state",
        details={
            "needed_bytes": needed, "budget_bytes": budget, "mesh": dict(mesh.axes), "num_microbatches": count,
            "fits_bytes": solution.bytes,
        },
    )  # fmt: skip
