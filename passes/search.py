"""The whole search: meshes and microbatches outside, everything else by elimination inside.

Every mesh is bounded with memory ignored, then the best bound is solved first until no bound is below the
best objective. More microbatches never cost less time in the built-in cost model (every price is a start
plus a rate), so their number grows only where memory costs time; a profile with its own functions gets
every number tried.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autopar.cost_model import Cluster, CostProfile, Group, axis_groups, optimizer_state_bytes
from autopar.ir.errors import InfeasibleError, LimitReachedError, UnsupportedError
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS
from autopar.ir.program import Parameter, Program
from autopar.passes.assignment import Assignment, decode
from autopar.passes.build import Encoded, Model, build
from autopar.passes.candidate import with_time
from autopar.passes.candidates import (
    MIXED_AXIS,
    fitting,
    microbatch_counts,
    mixed_meshes,
    pinned_meshes,
    pipeline_places,
    searched_meshes,
    with_pipeline,
)
from autopar.passes.conversions import Conversions
from autopar.passes.found import Found, Limits
from autopar.passes.lower import lower
from autopar.passes.memory import Placed, walked
from autopar.passes.outputs import place_outputs
from autopar.passes.pipelining import Arrangement, Shape, arrange, shapes
from autopar.passes.positions import Positions, positions
from autopar.passes.pricing import Pricing
from autopar.passes.solve import Solution, solve
from autopar.passes.stage_account import copies_bytes
from autopar.passes.uniform import uniform
from autopar.passes.units import units_of

UNLIMITED_BYTES = 10**15
# Axes bound to the batch or to parameters make plans that are easier to read: one that is bound to nothing must be
# faster by this factor. What it could have gained counts in the gap.
MIXED_PAYS = 0.99
# Leaner placements that are tried for one candidate before it is taken not to fit.
LEANER = 8
# The axis whose meshes are bounded by it alone: its problems are the largest, and it is the innermost.
FLOOR_AXIS = "tp"
WIDEST = 8  # bytes of an element at most


@dataclass(frozen=True, kw_only=True, eq=False)
class _Candidate:
    """One mesh with a number of microbatches; ``bound_ns`` holds for it and for all larger numbers.

    ``full``: the mesh of all processes, which has the pipeline's axis besides.
    ``handicap``: what its times are multiplied with when they are compared; ``scale``: what the time of all work on
    one place is multiplied with to be that of the step. ``loose``: the bound is one that was cheap to have.
    """

    bound_ns: int
    mesh: Mesh
    count: int
    more: tuple[int, ...]
    full: Mesh
    handicap: float = 1.0
    shape: Shape | None = None
    loose: bool = False

    @property
    def scale(self) -> float:
        return 1.0 if self.shape is None else self.shape.stretch / self.shape.places


@dataclass(frozen=True, eq=False)
class _Best:
    candidate: _Candidate
    solution: Solution
    encoded: Encoded
    pricing: Pricing
    objective_ns: int
    cut: Arrangement | None = None


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
    best: _Best | None = None
    closest: tuple[Solution, Mesh, int] | None = None
    refused: UnsupportedError | InfeasibleError | None = None
    evaluations: int = 0
    candidates: int = 0
    complete: bool = True
    bounds: list[int] = field(default_factory=list)
    floors: dict[tuple[Group, int], int] = field(default_factory=dict)

    def encode(
        self, mesh: Mesh, full: Mesh, count: int, *, live: int = 1, ample: bool = False
    ) -> tuple[Encoded, Pricing] | None:
        """The candidate's problem; None if the model cannot be placed so (``refused`` says why)."""
        self.candidates += 1
        groups = axis_groups(full.axes, self.cluster)
        pricing = Pricing(
            mesh=with_time(mesh, count), cluster=self.cluster, profile=self.profile, groups=groups
        )
        try:
            return build(self.model, self.found, pricing, count, live=live, ample=ample), pricing
        except (UnsupportedError, InfeasibleError) as error:
            self.refused = error
            return None

    def floored(self, mesh: Mesh, counts: tuple[int, ...]) -> _Candidate | None:
        """The first number of microbatches with a bound from the innermost axis alone; None where there is none.

        Let one device do the work of all that differ in the other axes: it takes at most as many times as long, since
        every price is a start plus a rate. So the mesh of the innermost axis bounds all meshes that end in it.
        """
        axis, size = mesh.axes[-1]
        profile = self.profile
        if axis != FLOOR_AXIS or len(mesh.axes) == 1 or self.model.settings.constraints:
            return None
        if profile.has_compute_hook or profile.has_collective_hook:
            return None
        key = axis_groups(mesh.axes, self.cluster)[axis], counts[0]
        if key not in self.floors:
            alone = self.bounded(Mesh(((axis, size),)), counts[:1], mesh)
            self.floors[key] = 0 if alone is None else alone.bound_ns
        floor = self.floors[key] // (self.cluster.world_size // size)
        return _Candidate(bound_ns=floor, mesh=mesh, count=counts[0], more=counts[1:], full=mesh, loose=True)

    def bounded(
        self, mesh: Mesh, counts: tuple[int, ...], full: Mesh, shape: Shape | None = None
    ) -> _Candidate | None:
        """The first number of microbatches with its bound, memory ignored."""
        encoded = self.encode(mesh, full, counts[0], ample=True)
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
        return _Candidate(
            bound_ns=free.bound_ns, mesh=mesh, count=counts[0], more=counts[1:], full=full, handicap=handicap,
            shape=shape,
        )  # fmt: skip

    def settle(self, candidate: _Candidate) -> bool:
        """Solve one candidate under the memory limit; True if more microbatches may do better."""
        encoded = self.encode(candidate.mesh, candidate.full, candidate.count)
        if encoded is None:
            return False
        problem, budget = encoded[0].problem, self.limits.memory_bytes
        above = int(self.best_ns / candidate.handicap) if self.best else None
        for attempt in range(LEANER):
            solution = solve(problem, memory_bytes=budget, upper_bound_ns=above, effort=1)
            if solution.status == "feasible" and (above is None or solution.objective_ns <= above):
                solution = solve(problem, memory_bytes=budget, upper_bound_ns=above, effort=2)
            self.evaluations += solution.evaluations
            if attempt == 0 and solution.status not in ("infeasible", "unknown"):
                self.bounds.append(solution.bound_ns)
            fits = (
                solution.found
                and solution.status in ("optimal", "feasible", "dominated")
                and solution.bytes <= budget
            )
            over = self.peak(encoded, candidate.count, solution) - self.limits.memory_bytes if solution.found else 0
            if not fits or over <= 0:
                break
            budget, fits = solution.bytes - over, False  # the sum is too small by what the walk finds
        if over > 0:
            solution = replace(solution, bytes=self.limits.memory_bytes + over)
        if fits and (above is None or solution.objective_ns < above):
            self._take(candidate, _Best(candidate, solution, *encoded, solution.objective_ns))
        if self.closest is None or solution.bytes < self.closest[0].bytes:
            self.closest = solution, candidate.mesh, candidate.count
        return not (fits and solution.closed_by == "elimination" and solution.bound_ns <= candidate.bound_ns)

    def peak(self, encoded: tuple[Encoded, Pricing], count: int, solution: Solution) -> int:
        """Most bytes that are held at once. The solver's sum leaves out what is sent of the root's gradients."""
        (problem, pricing), graph = encoded, self.model.graph
        sent = sum(node.result.type.numel * WIDEST for node in graph.sources("param"))
        if solution.bytes + sent <= self.limits.memory_bytes:
            return solution.bytes
        assignment, program = self._lowered(problem, pricing, count, solution)
        placed = Placed(
            encoded=problem, solution=solution, assignment=assignment, pricing=pricing, microbatches=count
        )
        return max(solution.bytes, sum(walked(self.model, placed, program).values()))

    def _lowered(
        self, encoded: Encoded, pricing: Pricing, count: int, solution: Solution
    ) -> tuple[Assignment, Program]:
        conversions = Conversions(pricing)
        decoded = decode(self.model, encoded, solution, pricing.mesh)
        assignment = place_outputs(self.model, decoded, self.found, conversions)
        return assignment, lower(self.model, assignment, conversions, count)

    def settle_pipeline(self, candidate: _Candidate, shape: Shape) -> None:
        """Place the model for one stage's devices within the memory of all stages, then cut it.

        Every call is taken to hold as many microbatches as the first stage does. A cut that does not fit asks for a
        leaner placement. What is proven is the bound without memory.
        """
        self.bounds.append(int(candidate.bound_ns * candidate.scale))
        made = [
            self.encode(candidate.mesh, candidate.full, candidate.count, live=n) for n in (shape.most_live, 0, 1)
        ]
        if made[0] is None or made[1] is None or made[2] is None:
            return
        (encoded, pricing), (lean, _), (full, _) = made[0], made[1], made[2]
        budget = self.limits.memory_bytes * shape.places
        for _ in range(LEANER):
            solution = solve(encoded.problem, memory_bytes=budget, effort=1)
            self.evaluations += solution.evaluations
            if not solution.found or solution.bytes > budget:
                self._near(candidate, shape, solution)
                return
            solution = uniform(encoded.problem, solution, budget)
            _, program = self._lowered(encoded, pricing, candidate.count, solution)
            calls = sum(count for node in lean.calls if isinstance(count := node.attr("count"), int))
            units = units_of(self.model, program, solution, lean, full, anywhere=calls < shape.stages)
            cut = arrange(units, shape, pricing, self.limits.memory_bytes)
            if cut is not None:
                copies = copies_bytes(program, cut.marks, shape, self._state_bytes)
                cut = replace(cut, bytes=tuple(a + b for a, b in zip(cut.bytes, copies, strict=True)))
            if cut is not None and max(cut.bytes) <= self.limits.memory_bytes:
                if self.best is None or cut.objective_ns < self.best_ns:
                    self._take(candidate, _Best(candidate, solution, encoded, pricing, cut.objective_ns, cut))
                return
            if len(units) < shape.stages:
                self.refused = UnsupportedError(
                    f"{shape.stages} pipeline stages, but the model has only {len(units)} parts to cut it into"
                )
                return
            self._near(candidate, shape, solution)
            budget = int(min(budget, solution.bytes) * 0.93)

    def _near(self, candidate: _Candidate, shape: Shape, solution: Solution) -> None:
        """Remember a placement that did not fit, by what it needs of one place."""
        share = replace(
            solution, bytes=-(-solution.bytes // shape.places), least_bytes=solution.least_bytes // shape.places
        )
        if self.closest is None or share.bytes < self.closest[0].bytes:
            self.closest = share, candidate.full, candidate.count

    def _state_bytes(self, parameter: Parameter) -> int:
        local = parameter.layout.local_shape(parameter.type.shape)
        return optimizer_state_bytes(self.model.settings.optimizer, local, parameter.type.dtype, self.profile)

    def _take(self, candidate: _Candidate, best: _Best) -> None:
        self.best, self.best_ns = best, best.objective_ns * candidate.handicap
        self.progress(f"mesh({candidate.full}) × {candidate.count}: {best.objective_ns / 1e9:.4g} s")

    def run(self, candidates: list[_Candidate], *, hooked: bool) -> None:
        """Best bound first; ends when no bound is below the best objective."""
        waiting = list(candidates)
        while waiting:
            waiting.sort(key=lambda c: (c.bound_ns * c.scale * c.handicap, c.full.axes, c.count))
            candidate = waiting.pop(0)
            if self.best is not None:
                late = time.monotonic() - self.started > self.limits.time_limit_s
                if candidate.bound_ns * candidate.scale * candidate.handicap >= self.best_ns or late:
                    self.complete = not late
                    self.bounds += [int(left.bound_ns * left.scale) for left in (candidate, *waiting)]
                    return
            if candidate.loose:
                tight = self.bounded(candidate.mesh, (candidate.count, *candidate.more), candidate.full)
                waiting += [] if tight is None else [tight]
                continue
            if candidate.shape is not None:
                self.settle_pipeline(candidate, candidate.shape)
                continue
            if (self.settle(candidate) or hooked) and candidate.more:
                larger = self.bounded(candidate.mesh, candidate.more, candidate.full)
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
    pinned = limits.mesh or {}
    found = []
    for places in pipeline_places(pinned, cluster.world_size):
        world = cluster.world_size // places
        tried = pinned_meshes(pinned, world) if limits.mesh is not None else itertools.chain(
            searched_meshes(world, batch or 1, sequence), mixed_meshes(world, batch or 1)
        )  # fmt: skip
        for mesh in fitting(tried, batch, sequence, limits.microbatches):
            counts = (
                microbatch_counts(batch or 1, mesh.size("dp") * mesh.size(MIXED_AXIS))
                if limits.microbatches is None
                else (limits.microbatches,)
            )
            if places == 1:
                floored = state.floored(mesh, counts) if limits.mesh is None else None
                found.append(floored or state.bounded(mesh, counts, mesh))
                continue
            full = with_pipeline(mesh, tuple(pinned), places)
            found += [
                state.bounded(mesh, (shape.microbatches,), full, shape)
                for shape in shapes(limits.schedule, places, counts, strict=pinned.get(PIPELINE_AXIS) == places)
            ]
    known = [candidate for candidate in found if candidate is not None]
    state.run(known, hooked=profile.has_compute_hook or profile.has_collective_hook)
    if state.best is None:
        raise _failure(state)
    best = state.best
    solution, candidate = best.solution, best.candidate
    objective_ns = best.objective_ns
    if best.cut is None:
        alike = uniform(best.encoded.problem, solution, limits.memory_bytes)
        if state.peak((best.encoded, best.pricing), candidate.count, alike) <= limits.memory_bytes:
            solution, objective_ns = alike, alike.objective_ns
    return Found(
        mesh=candidate.mesh, full=candidate.full, objective_ns=objective_ns,
        pipeline=None if best.cut is None or candidate.shape is None else (candidate.shape, best.cut),
        microbatches=candidate.count, pricing=best.pricing, encoded=best.encoded, solution=solution,
        assignment=decode(model, best.encoded, solution, best.pricing.mesh),
        bound_ns=min(*state.bounds, objective_ns), complete=state.complete, evaluations=state.evaluations,
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
