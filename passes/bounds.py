"""Lower bounds on outer choices, cheap ones first, memory ignored.

Let one device do the work of several neighbours: it takes at most as many times as long, since every price is a start
plus a rate. So one device bounds every mesh, two along an axis all meshes with twice as many or any even number there,
and the mesh of an innermost axis all meshes that end in it.
More microbatches never cost less, so few bound many. A pipeline takes its share of all work on one stage's devices,
stretched by its bubble.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from autopar.cost_model import Cluster, CostProfile, axis_groups
from autopar.ir.errors import InfeasibleError, UnsupportedError
from autopar.ir.mesh import Mesh
from autopar.passes.build import Encoded, Model, build
from autopar.passes.candidate import with_time
from autopar.passes.outer import Candidate, Rung
from autopar.passes.positions import Positions
from autopar.passes.pricing import Pricing
from autopar.passes.solve import solve

UNLIMITED_BYTES = 10**15
# The axis whose meshes are bounded by it alone: its problems are the largest, and it is the innermost.
FLOOR_AXIS = "tp"
# Axes along which devices exchange what grows with the work, however few they are.
PRIME_AXES = ("cp", "tp")


@dataclass(eq=False)
class Bounds:
    """Problems of outer choices and what bounds them; each bound is worked out once.

    ``searched``: whether there are so many of them that cheap bounds pay.
    """

    model: Model
    cluster: Cluster
    profile: CostProfile
    positions: Positions
    searched: bool = True
    refused: UnsupportedError | InfeasibleError | None = None
    evaluations: int = 0
    problems: int = 0
    known: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    scheduled: dict[str | None, Model] = field(default_factory=dict)

    @property
    def own_only(self) -> bool:
        """Whether only a candidate's own mesh may bound it, as where prices or constraints are the user's."""
        hooked = self.profile.has_compute_hook or self.profile.has_collective_hook
        return hooked or not self.searched or bool(self.model.settings.constraints)

    def model_for(self, schedule: str | None) -> Model:
        """The model with the modes that a schedule leaves it."""
        if schedule == self.model.settings.schedule:
            return self.model
        if schedule not in self.scheduled:
            settings = replace(self.model.settings, schedule=schedule)
            self.scheduled[schedule] = replace(self.model, settings=settings)
        return self.scheduled[schedule]

    def encode(
        self, candidate: Candidate, schedule: str | None, *, live: int = 1, ample: bool = False, inner: bool = False
    ) -> tuple[Encoded, Pricing] | None:
        """The candidate's problem; None if the model cannot be placed so (``refused`` says why)."""
        self.problems += 1
        count = candidate.count
        pricing = Pricing(
            mesh=with_time(candidate.mesh, count), cluster=self.cluster, profile=self.profile,
            groups=axis_groups(candidate.full.axes, self.cluster),
        )  # fmt: skip
        try:
            model = self.model_for(schedule)
            return build(model, replace(self.positions, inner=inner), pricing, count, live=live, ample=ample), pricing
        except (UnsupportedError, InfeasibleError) as error:
            self._refuse(candidate, error)
            return None

    def raised(self, candidate: Candidate) -> Candidate | None:
        """The candidate with the next bound; None if the model cannot be placed so."""
        rung = Rung(candidate.rung + 1)
        bound = self._bound_ns(candidate, rung)
        if bound is None:
            return None
        return replace(candidate, rung=rung, bound_ns=max(bound, candidate.bound_ns))

    def _bound_ns(self, candidate: Candidate, rung: Rung) -> int | None:
        """0 where there is no such bound."""
        if rung == Rung.OWN:
            return self._free_ns(candidate)
        if rung == Rung.FEWEST:
            fewer = replace(candidate, count=candidate.fewest)
            return self._free_ns(fewer) if candidate.count > candidate.fewest else 0
        if self.own_only:
            return 0
        mesh = candidate.mesh
        axis, size = mesh.axes[-1]
        if rung == Rung.DEVICE:
            return self._floor_ns(mesh, "dp", 1)
        if rung == Rung.PRIME:
            return max((self._prime_ns(mesh, axis, size) for axis, size in mesh.axes if axis in PRIME_AXES), default=0)
        return self._floor_ns(mesh, axis, size) if axis == FLOOR_AXIS and len(mesh.axes) > 1 else 0

    def _prime_ns(self, mesh: Mesh, axis: str, size: int) -> int:
        """From as many devices along the axis as its smallest factor, on the best links that there are."""
        least = next(n for n in range(2, size + 1) if size % n == 0)
        near = self.cluster.gpus_per_node
        if not self.cluster.has_equal_nodes or (near % least and near > 1):
            return 0  # other groups may lie better
        return self._floor_ns(mesh, axis, least, inner=True)

    def _floor_ns(self, mesh: Mesh, axis: str, size: int, *, inner: bool = False) -> int:
        """From one axis alone, innermost: its devices do the work of all."""
        world = math.prod(size for _, size in mesh.axes)
        rest = self.cluster.world_size // size
        full = Mesh((("rest", rest), (axis, size)))
        alone = Candidate(mesh=Mesh(((axis, size),)), full=full, count=1, fewest=1)
        return (self._free_ns(alone, inner=inner) or 0) * size // world

    def _free_ns(self, candidate: Candidate, *, inner: bool = False) -> int | None:
        """All work on one stage's devices, memory ignored. What one schedule allows is a part of what 1F1B does."""
        groups = axis_groups(candidate.full.axes, self.cluster)
        schedule = None if candidate.shape is None else "1f1b"
        near = tuple(groups[axis] for axis in candidate.mesh.names)
        key = near, candidate.count, schedule, inner
        if key not in self.known:
            self.known[key] = self._solved_ns(candidate, schedule, inner=inner)
        return self.known[key]

    def _solved_ns(self, candidate: Candidate, schedule: str | None, *, inner: bool) -> int | None:
        encoded = self.encode(candidate, schedule, ample=True, inner=inner)
        if encoded is None:
            return None
        free = solve(encoded[0].problem, memory_bytes=UNLIMITED_BYTES, effort=0)
        self.evaluations += free.evaluations
        if free.found:
            return free.bound_ns
        self._refuse(candidate, UnsupportedError(
            f"no placement is legal on mesh({candidate.mesh}) with {candidate.count} microbatch(es): some value is "
            "needed in a layout that nothing leads to, such as of the whole batch while only a microbatch is at hand"
        ))  # fmt: skip
        return None

    def _refuse(self, candidate: Candidate, error: UnsupportedError | InfeasibleError) -> None:
        """Remember why there is no such placement; of a pipeline only where nothing else was refused."""
        if candidate.shape is None or self.refused is None:
            self.refused = error
