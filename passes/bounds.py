"""Lower bounds on outer choices, cheap ones first, mostly with memory ignored.

Let one device do the work of several neighbours: it takes at most as many times as long, since every price is a start
plus a rate. So one device bounds every mesh, two along an axis all meshes with twice as many or any even number there,
and the mesh of an innermost axis all meshes that end in it. Devices hold together what one would, or more: so one with
the memory of all bounds every mesh with as many microbatches (also a pipeline, which holds at least one of them).
More microbatches never cost less, so few bound many. A pipeline takes its share of all work on one stage's devices,
stretched by its bubble.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.cost_model import Cluster, CostProfile, axis_groups
from autopar.ir.errors import InfeasibleError, UnsupportedError
from autopar.ir.mesh import Mesh
from autopar.passes.build import Encoded, Model, build
from autopar.passes.candidate import with_time
from autopar.passes.candidates import data_parallel
from autopar.passes.found import UNLIMITED_BYTES, UNREACHABLE_NS
from autopar.passes.ground import Ground
from autopar.passes.heavy import build_heavy
from autopar.passes.heavy_bounds import HeavyBounds
from autopar.passes.kinds import kinds
from autopar.passes.outer import Candidate, Rung
from autopar.passes.positions import Positions
from autopar.passes.pricing import Pricing
from autopar.passes.solve import AnySolver, solve, solver_of

GROUNDS = 16  # of so many meshes what their problems share is kept
# Microbatches that cost so much more than most of them, for want of memory, are not tried first.
NEAR = 1.001
# A bound that grows by less than this, for want of memory, tells too little to be worked out for more numbers of them.
LITTLE = 1.005
# Axes along which devices exchange what grows with the work, however few they are.
PRIME_AXES = ("cp", "tp")
# Numbers of microbatches that bound all their multiples: few of them, so that many pipelines share one problem.
MANY = (16, 128)


@dataclass(frozen=True, eq=False)
class Known:
    """What searches of one model on one cluster may share, whatever they leave free but constraints.

    ``grounds``: of meshes, the latest few.
    """

    positions: Positions
    grounds: dict[tuple[object, ...], Ground] = field(default_factory=dict)


@dataclass(eq=False)
class Bounds:
    """Problems of outer choices and what bounds them; each bound is worked out once.

    ``memory_bytes``: of each device. ``searched``: whether there are so many of them that cheap bounds pay. ``quick``:
    of a quick search.
    """

    model: Model
    cluster: Cluster
    profile: CostProfile
    positions: Positions
    memory_bytes: int
    searched: bool = True
    quick: bool = False
    refused: UnsupportedError | InfeasibleError | None = None
    evaluations: int = 0
    problems: int = 0
    price: float = 0.0  # of memory (ns a byte), where it last bound: problems are alike
    binds: bool = False  # whether memory costs the best plan time; then bounds that ignore it tell little
    known: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    exact: set[tuple[object, ...]] = field(default_factory=set)  # of ``known``: what is not to be raised any further
    begun: dict[tuple[object, ...], AnySolver] = field(default_factory=dict)  # the latest of the others
    cut: set[int] = field(default_factory=set)  # numbers of microbatches that were tried on one device
    uncut: dict[int, UnsupportedError] = field(default_factory=dict)  # those that no mesh can take
    grounds: dict[tuple[object, ...], Ground] = field(default_factory=dict)
    variants: dict[tuple[str | None, bool, bool, bool], Model] = field(default_factory=dict)

    @property
    def own_only(self) -> bool:
        """Whether only a candidate's own mesh may bound it, as where prices are the user's."""
        return self.profile.has_compute_hook or self.profile.has_collective_hook or not self.searched

    @cached_property
    def _kinds(self) -> dict[tuple[str, str], int]:
        return kinds(self.model, self.positions)

    def model_of(self, candidate: Candidate) -> Model:
        """The model with the modes that a candidate leaves it."""
        return self.model_for(candidate.schedule, uneven=candidate.uneven)

    def model_for(
        self, schedule: str | None, *, pooled: bool = False, alone: bool = False, uneven: bool = False
    ) -> Model:
        """The model with the modes that a schedule, or unequal shares, leave it.

        ``alone``: as it stands for many meshes, without constraints, whose axes it may not have.
        """
        constraints = () if alone else self.model.settings.constraints
        settings = replace(
            self.model.settings, schedule=schedule, pooled=pooled, constraints=constraints, uneven=uneven
        )
        if settings == self.model.settings:
            return self.model
        key = schedule, pooled, alone, uneven
        if key not in self.variants:
            self.variants[key] = replace(self.model, settings=settings)
        return self.variants[key]

    def encode(
        self, candidate: Candidate, schedule: str | None, *, ample: bool = False, inner: bool = False,
        pooled: bool = False, alone: bool = False, only_heavy: bool = False,
    ) -> tuple[Encoded, Pricing] | None:  # fmt: skip
        """The candidate's problem; None if the model cannot be placed so (``refused`` says why).

        ``only_heavy``: that of its heavy operations alone.
        """
        count = candidate.count
        if count in self.uncut:
            self._refuse(candidate, self.uncut[count])
            return None
        self.problems += 1
        try:
            model = self.model_for(schedule, pooled=pooled, alone=alone, uneven=candidate.uneven)
            ground = self.ground(model, candidate, inner=inner)
            if only_heavy:
                made = build_heavy(model, ground, count, self.heavy.beside(count), ample=ample)
            else:
                made = build(model, ground.found, ground.pricing, count, ample=ample, ground=ground)
            return made, ground.pricing
        except (UnsupportedError, InfeasibleError) as error:
            self._refuse(candidate, error)
            if count > 1 and isinstance(error, UnsupportedError):
                self._cut(count)
            return None

    @cached_property
    def heavy(self) -> HeavyBounds:
        """What few operations with most of the weights say by themselves."""
        return HeavyBounds(self)

    def _cut(self, count: int) -> None:
        """Remember whether one device cannot take so many microbatches either: time leaves no choice, so none can."""
        if count in self.cut:
            return
        self.cut.add(count)
        model = self.model_for(None, alone=True)
        try:
            ground = self.ground(model, replace(self.alone("dp", 1), count=count), inner=False)
            build(model, ground.found, ground.pricing, count, ample=True, ground=ground)
        except UnsupportedError as error:
            self.uncut[count] = error

    def ground(self, model: Model, candidate: Candidate, *, inner: bool) -> Ground:
        """What the problems of one mesh share; the latest few are kept."""
        key = (
            candidate.full.axes, candidate.mesh.axes, candidate.count, inner, model.settings.constraints,
            candidate.uneven,
        )  # fmt: skip
        ground = self.grounds.pop(key, None)
        if ground is None:
            pricing = Pricing(
                mesh=with_time(candidate.mesh, candidate.count), cluster=self.cluster, profile=self.profile,
                groups=axis_groups(candidate.full.axes, self.cluster), uneven=candidate.uneven,
            )  # fmt: skip
            ground = Ground(model, replace(self.positions, inner=inner), pricing, self._kinds)
        self.grounds[key] = ground
        if len(self.grounds) > GROUNDS:
            del self.grounds[next(iter(self.grounds))]
        return ground

    @property
    def ample_bytes(self) -> int:
        """What one device that does everything holds, if nothing is done to hold less; of one microbatch."""
        key = ("ample bytes",)
        if key not in self.known:
            encoded = self.encode(self.alone("dp", 1), None, ample=True, alone=True)
            free = None if encoded is None else solve(encoded[0].problem, memory_bytes=UNLIMITED_BYTES, effort=0)
            self.known[key] = 0 if free is None else free.bytes
        return self.known[key] or 0

    def raised(self, candidate: Candidate, enough_ns: int | None = None) -> Candidate | None:
        """The candidate with the next bound; None if the model cannot be placed so. ``enough_ns``: rules it out."""
        rung = Rung.OWN if candidate.uneven else Rung(candidate.rung + 1)
        bound = self._bound_ns(candidate, rung, enough_ns)
        if bound is None:
            return None
        return replace(candidate, rung=rung, bound_ns=max(bound, candidate.bound_ns))

    def _bound_ns(self, candidate: Candidate, rung: Rung, enough_ns: int | None) -> int | None:
        """0 where there is no such bound."""
        if rung in (Rung.ROUGH, Rung.OWN):
            return self._free_ns(candidate, enough_ns=enough_ns, rough=rung == Rung.ROUGH)
        if rung == Rung.FEWEST:
            known = candidate.count > candidate.fewest or self.binds or self.heavy.there
            return self._fewest_ns(candidate, enough_ns) if known else 0
        if self.own_only:
            return 0
        mesh = candidate.mesh
        if rung == Rung.DEVICE:
            return max(self._floor_ns(mesh, "dp", 1), self.heavy.reducing_ns(candidate))
        if rung == Rung.POOLED:
            return self._least_share_ns(candidate)
        if rung == Rung.HEAVY:
            return self.heavy.alone_ns(candidate)
        if rung == Rung.PRIME:
            return max((self._prime_ns(mesh, axis, size) for axis, size in mesh.axes if axis in PRIME_AXES), default=0)
        if rung == Rung.SHARED:
            if not self.binds or len(mesh.axes) == 1:
                return 0
            axes = [axis for axis in mesh.names if axis in PRIME_AXES]
            return max((self._share_ns(mesh, axis, candidate.count) for axis in axes), default=0)
        return self._axes_ns(candidate, enough_ns)

    def _fewest_ns(self, candidate: Candidate, enough_ns: int | None) -> int | None:
        """From the fewest microbatches that are not slow enough for want of memory."""
        count, slow = candidate.fewest, UNREACHABLE_NS
        if self.binds and candidate.shape is None and enough_ns is not None and not self.own_only:
            shares = {n: self._share_ns(candidate.mesh, None, n) for n in (candidate.count, *candidate.more)}
            count = next((n for n, share in shares.items() if share < enough_ns), count)
            slow = min((share for n, share in shares.items() if n < count), default=slow)
        free = self._free_ns(replace(candidate, count=count, more=()), enough_ns=enough_ns)
        return None if free is None else min(free, slow)

    def by_count(self, candidate: Candidate) -> list[Candidate]:
        """The candidate without numbers of microbatches that are surely slow for want of memory, and each of those."""
        counts = (candidate.count, *candidate.more)
        if self.own_only or len(counts) == 1:
            return [candidate]
        bounds = [self._share_ns(candidate.mesh, None, count) for count in counts]
        first = next(at for at, bound in enumerate(bounds) if bound <= NEAR * min(bounds))
        return [replace(candidate, count=counts[first], more=counts[first + 1 :]), *self._each(candidate, first)]

    def counted(self, candidate: Candidate) -> list[Candidate]:
        """One candidate for each of its numbers of microbatches, that first of which memory is no matter any more."""
        each = self.each_count(candidate)
        least = min(one.bound_ns for one in each)
        first = next(one for one in each if one.bound_ns <= NEAR * least)
        return [replace(one, late=one is not first) for one in each]

    def each_count(self, candidate: Candidate) -> list[Candidate]:
        """One candidate for each of its numbers of microbatches."""
        return self._each(candidate, 1 + len(candidate.more))

    def _each(self, candidate: Candidate, counts: int) -> list[Candidate]:
        numbers = (candidate.count, *candidate.more)[:counts]
        alone = [replace(candidate, count=count, more=(), late=True) for count in numbers]
        return [
            replace(one, bound_ns=max(one.bound_ns, self._share_ns(one.mesh, None, one.count))) for one in alone
        ]

    def _least_share_ns(self, candidate: Candidate) -> int:
        """Over its numbers of microbatches, of which the most hold least; 0 once one tells little more than before."""
        least = UNREACHABLE_NS
        counts = candidate.count, *candidate.more
        for count in sorted(counts, key=lambda count: (("pooled", "dp", 1, count, False) not in self.known, -count)):
            least = min(least, self._share_ns(candidate.mesh, None, count))
            if least <= LITTLE * candidate.bound_ns:
                return 0
        return least

    def _share_ns(self, mesh: Mesh, axis: str | None, count: int) -> int:
        """One stage's time if an axis alone, or one device, did all work in so many microbatches with all memory.

        An axis with others inside may hold pieces that do not lie together.
        """
        world = math.prod(size for _, size in mesh.axes)
        size = 1 if axis is None else mesh.size(axis)
        inner = axis is not None and axis != mesh.names[-1]
        return self._pooled_ns(axis or "dp", size, count, inner=inner) * size // world

    def _pooled_ns(self, axis: str, size: int, count: int, *, inner: bool) -> int:
        key = "pooled", axis, size, count, inner
        if key not in self.known:
            fewer = self.known.get(("pooled", axis, size, count // 2, inner)) if count % 2 == 0 else None
            free = self._free_ns(self.alone(axis, size), alone=True) or 0 if size == 1 else 0
            if fewer is not None and fewer <= NEAR * free:
                return free  # memory is no matter with fewer
            self.known[key] = max(free, self._solved_pooled_ns(axis, size, count, inner=inner))
        return self.known[key] or 0

    def _solved_pooled_ns(self, axis: str, size: int, count: int, *, inner: bool) -> int:
        one = replace(self.alone(axis, size), count=count)
        encoded = self.encode(one, None, pooled=True, inner=inner, alone=True)
        if encoded is None:
            return 0
        memory = self.memory_bytes * self.cluster.world_size // size
        solver = solver_of(encoded[0].problem, memory_bytes=memory, price=self.price)
        found = solver.solution(0) if size == 1 else None
        self.evaluations += solver.evaluations
        if found is not None and found.status == "infeasible":
            return UNREACHABLE_NS
        self.price = self.price or (0.0 if found is None else found.price)
        return max(solver.bound_ns, 0)

    def _prime_ns(self, mesh: Mesh, axis: str, size: int) -> int:
        """From as many devices along the axis as its smallest factor, on the best links that there are."""
        least = next(n for n in range(2, size + 1) if size % n == 0)
        near = self.cluster.gpus_per_node
        if not self.cluster.has_equal_nodes or (near % least and near > 1):
            return 0  # other groups may lie better
        return self._floor_ns(mesh, axis, least, inner=True)

    def _axes_ns(self, candidate: Candidate, enough_ns: int | None) -> int:
        """From each axis alone, the innermost first: fewer devices along it before more, if that may be enough.

        A pipeline's microbatches are small; the devices that do the work of all run as many more of them.
        """
        near, bound, mesh = self.cluster.gpus_per_node, 0, candidate.mesh
        small = 1 if candidate.shape is None else candidate.count * data_parallel(mesh)
        for axis, size in reversed(mesh.axes):
            last = axis == mesh.names[-1]
            counts = [size] if last and len(mesh.axes) > 1 else []
            if enough_ns is not None and self.cluster.has_equal_nodes:
                fewer = [n for n in range(2, size) if size % n == 0 and (near % n == 0 or (last and n % near == 0))]
                counts = [*fewer, *counts]
            floors = [(count, 1) for count in counts]
            if last and self.cluster.has_equal_nodes:
                floors += [(size, many) for many in MANY if small % many == 0]
            for count, microbatches in floors if axis in PRIME_AXES else ():
                bound = max(bound, self._floor_ns(mesh, axis, count, inner=not last, microbatches=microbatches))
                if enough_ns is not None and bound >= enough_ns:
                    return bound
        return bound

    def _floor_ns(self, mesh: Mesh, axis: str, size: int, *, inner: bool = False, microbatches: int = 1) -> int:
        """From one axis alone, innermost: its devices do the work of all."""
        world = math.prod(size for _, size in mesh.axes)
        one = replace(self.alone(axis, size), count=microbatches)
        return (self._free_ns(one, inner=inner, alone=True) or 0) * size // world

    def alone(self, axis: str, size: int) -> Candidate:
        """One axis of so many devices, innermost."""
        full = Mesh((("rest", self.cluster.world_size // size), (axis, size)))
        return Candidate(mesh=Mesh(((axis, size),)), full=full, count=1, fewest=1)

    def _free_ns(
        self, candidate: Candidate, *, inner: bool = False, alone: bool = False, enough_ns: int | None = None,
        rough: bool = False,
    ) -> int | None:  # fmt: skip
        """All work on one stage's devices, memory ignored. What one schedule allows is a part of what 1F1B does.

        ``enough_ns``: by how much more the bound may be is not asked. ``rough``: nor what little work does not tell.
        """
        groups = axis_groups(candidate.full.axes, self.cluster)
        schedule = None if candidate.shape is None else "1f1b"
        near = tuple(groups[axis] for axis in candidate.mesh.names)
        alone = alone and bool(self.model.settings.constraints)
        key = near, candidate.count, schedule, inner, alone, candidate.uneven
        enough = rough or key in self.exact or (enough_ns is not None and (self.known.get(key) or 0) >= enough_ns)
        if key not in self.known or not enough:
            solver = self.begun.pop(key, None) or self._free_solver(candidate, schedule, inner=inner, alone=alone)
            found = None if solver is None else self._raised_ns(candidate, key, solver, enough_ns, rough=rough)
            self.known[key] = found
            if found is None:
                self.exact.add(key)
        return self.known[key]

    def _free_solver(
        self, candidate: Candidate, schedule: str | None, *, inner: bool, alone: bool
    ) -> AnySolver | None:
        encoded = self.encode(candidate, schedule, ample=True, inner=inner, alone=alone)
        if encoded is None:
            return None
        solver = solver_of(encoded[0].problem, memory_bytes=UNLIMITED_BYTES)
        self.evaluations += solver.evaluations
        return solver

    def _raised_ns(
        self, candidate: Candidate, key: tuple[object, ...], solver: AnySolver, enough_ns: int | None, *, rough: bool
    ) -> int | None:
        """Its bound after more work; the solver is kept if there is more to be had. None where nothing is legal."""
        before = solver.evaluations
        if rough:
            solver.tighten()
        free = None if rough else solver.solution(0, upper_bound_ns=enough_ns)
        self.evaluations += solver.evaluations - before
        if free is None or free.status == "dominated":
            self.begun[key] = solver
            if len(self.begun) > GROUNDS:
                del self.begun[next(iter(self.begun))]
            return solver.bound_ns
        self.exact.add(key)
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
