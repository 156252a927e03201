"""Lower bounds on outer choices, cheap ones first, mostly with memory ignored.

Let one device do the work of several neighbours: it takes at most as many times as long, since every price is a start
plus a rate. So one device bounds every mesh, two along an axis all meshes with twice as many or any even number there,
and the mesh of an innermost axis all meshes that end in it. More microbatches never cost less, so few bound many. A
pipeline takes its share of all work on one stage's devices, stretched by its bubble. Bounds within memory are in
``pooled_bounds.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.cost_model import Cluster, CostProfile, axis_groups
from autopar.ir.errors import InfeasibleError, UnsupportedError
from autopar.ir.mesh import Mesh
from autopar.passes.build import Encoded, Model, build
from autopar.passes.candidate import with_time
from autopar.passes.candidates import SEARCHED_AXES, SENDING_AXES, data_parallel, divisors
from autopar.passes.found import UNLIMITED_BYTES, UNREACHABLE_NS
from autopar.passes.ground import Ground
from autopar.passes.grounds import Grounds
from autopar.passes.heavy import build_heavy
from autopar.passes.heavy_bounds import HeavyBounds
from autopar.passes.helper import Answer, Helper
from autopar.passes.kinds import Kinds
from autopar.passes.least_bytes import LeastBytes
from autopar.passes.outer import Candidate, Rung
from autopar.passes.pooled_bounds import PooledBounds
from autopar.passes.positions import Positions
from autopar.passes.pricing import Pricing
from autopar.passes.solve import AnySolver, solver_of
from autopar.passes.timeless import Timeless

MOST_JOINED = 1 << 28  # some hundred times as many as problems of known models have
BEGUN = 32  # so many bounds that may be raised further are kept
# Numbers of microbatches that bound all their multiples: few of them, so that many pipelines share one problem. Then as
# many as there are, which pipelines share that split the batch otherwise.
MANY = (16, 128)


@dataclass(frozen=True, eq=False)
class Known:
    """What searches of one model on one cluster may share, whatever they leave free but constraints."""

    positions: Positions
    grounds: Grounds = field(default_factory=Grounds)


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
    # The latest of the others; None: the helper's, tightened already.
    begun: dict[tuple[object, ...], AnySolver | None] = field(default_factory=dict)
    helper: Helper = field(default_factory=Helper)
    cut: set[int] = field(default_factory=set)  # numbers of microbatches that were tried on one device
    uncut: dict[int, UnsupportedError] = field(default_factory=dict)  # those that no mesh can take
    grounds: Grounds = field(default_factory=Grounds)
    variants: dict[tuple[str | None, bool, bool, bool], Model] = field(default_factory=dict)
    known_ns: dict[object, int] = field(default_factory=dict)  # ``Pricing.known_ns``

    @property
    def own_only(self) -> bool:
        """Whether only a candidate's own mesh may bound it, as where prices are the user's."""
        return self.profile.has_compute_hook or self.profile.has_collective_hook or not self.searched

    @property
    def most_joined(self) -> float:
        """Entries that an elimination may join: where there are other meshes none takes more than a second or two."""
        return MOST_JOINED if self.searched else math.inf

    @cached_property
    def kinds(self) -> Kinds:
        return Kinds(self.model, self.positions)

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
                made = build_heavy(model, ground, count, self.heavy.kept, ample=ample)
            else:
                made = build(model, ground.found, ground.pricing, count, ample=ample, ground=ground)
            return made, ground.pricing
        except (UnsupportedError, InfeasibleError) as error:
            self._refuse(candidate, error)
            if count > 1 and isinstance(error, UnsupportedError):
                self._cut(count)
            return None

    def again(self, candidate: Candidate) -> tuple[Encoded, Pricing] | None:
        """The problem of a candidate that was made before, here or by the helper, and is counted already."""
        self.problems -= 1
        return self.encode(candidate, candidate.schedule)

    @cached_property
    def least_bytes(self) -> LeastBytes:
        """What devices hold at least."""
        return LeastBytes(self.model, self.profile)

    @cached_property
    def heavy(self) -> HeavyBounds:
        """What few operations with most of the weights say by themselves."""
        return HeavyBounds(self)

    @cached_property
    def pooled(self) -> PooledBounds:
        """What one device, or one axis, says with the memory of all."""
        return PooledBounds(self)

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

    def pricing(self, candidate: Candidate) -> Pricing:
        """Of a candidate's own mesh."""
        return self.ground(self.model_of(candidate), candidate, inner=False).pricing

    def ground(self, model: Model, candidate: Candidate, *, inner: bool) -> Ground:
        """What the problems of one mesh share."""

        def make(timeless: Timeless) -> Ground:
            pricing = Pricing(
                mesh=with_time(candidate.mesh, candidate.count), cluster=self.cluster, profile=self.profile,
                groups=axis_groups(candidate.full.axes, self.cluster), uneven=candidate.uneven,
                known_ns=self.known_ns,
            )  # fmt: skip
            return Ground(model, replace(self.positions, inner=inner), pricing, self.kinds, timeless)

        return self.grounds.of(candidate, model.settings.constraints, inner=inner, make=make)

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
            return self.free_ns(candidate, enough_ns=enough_ns, rough=rung == Rung.ROUGH)
        if rung == Rung.FEWEST:
            known = candidate.count > candidate.fewest or self.binds or self.heavy.there
            return self._fewest_ns(candidate, enough_ns) if known else 0
        if rung == Rung.DEVICE and not self.least_bytes.fit(candidate, self.memory_bytes):
            return UNREACHABLE_NS
        if self.own_only:
            return 0
        mesh = candidate.mesh
        if rung == Rung.DEVICE:
            return max(self._floor_ns(mesh, "dp", 1), self.heavy.reducing_ns(candidate))
        if rung == Rung.POOLED:
            return self.pooled.least_share_ns(candidate)
        if rung == Rung.HEAVY:
            return self.heavy.bound_ns(candidate, enough_ns)
        if rung == Rung.PRIME:
            sending = [(axis, size) for axis, size in mesh.axes if axis in SENDING_AXES]
            return max((self._prime_ns(mesh, axis, size) for axis, size in sending), default=0)
        if rung == Rung.SHARED:
            if not self.binds or len(mesh.axes) == 1:
                return 0
            axes = [axis for axis in mesh.names if axis in SENDING_AXES]
            return max((self.pooled.share_ns(mesh, axis, candidate.count) for axis in axes), default=0)
        return self._axes_ns(candidate, enough_ns)

    def _fewest_ns(self, candidate: Candidate, enough_ns: int | None) -> int | None:
        """From the fewest microbatches that are not slow enough for want of memory."""
        count, slow = candidate.fewest, UNREACHABLE_NS
        if self.binds and candidate.shape is None and enough_ns is not None and not self.own_only:
            shares = {n: self.pooled.share_ns(candidate.mesh, None, n) for n in (candidate.count, *candidate.more)}
            count = next((n for n, share in shares.items() if share < enough_ns), count)
            slow = min((share for n, share in shares.items() if n < count), default=slow)
        free = self.free_ns(replace(candidate, count=count, more=()), enough_ns=enough_ns, rough=True)
        return None if free is None else min(free, slow)

    def _prime_ns(self, mesh: Mesh, axis: str, size: int) -> int:
        """From as many devices along the axis as its smallest factor, on the best links that there are.

        Others may be inside but for tp where it is innermost: there it is what ``_axes_ns`` asks.
        """
        inner = axis != SEARCHED_AXES[-1] or axis != mesh.names[-1]
        counts = (n for n in range(2, size + 1) if size % n == 0)
        least = next(n for n in counts if inner or self.kinds.stand_for(axis, n, size))
        near = self.cluster.gpus_per_node
        across = near % least != 0 and (inner or least % near != 0)
        if not self.cluster.has_equal_nodes or (across and near > 1):
            return 0  # other groups may lie better
        return self._floor_ns(mesh, axis, least, inner=inner)

    def _axes_ns(self, candidate: Candidate, enough_ns: int | None) -> int:
        """From each axis alone, the innermost first: fewer devices along it before more, if that may be enough.

        A pipeline's microbatches are small; the devices that do the work of all run as many more of them.
        """
        bound, mesh = 0, candidate.mesh
        for axis, _ in reversed(mesh.axes):
            last = axis == mesh.names[-1]
            for count, microbatches, inside in self._fewer(candidate, axis, enough_ns) if axis in SENDING_AXES else ():
                floor = self._floor_ns(mesh, axis, count, inner=not last, microbatches=microbatches, inside=inside)
                bound = max(bound, floor)
                if enough_ns is not None and bound >= enough_ns:
                    return bound
        return bound

    def _fewer(self, candidate: Candidate, axis: str, enough_ns: int | None) -> list[tuple[int, int, int]]:
        """How many devices along the axis to ask, in how many microbatches, and how many are nearer to each than those.

        Where others fill what an axis leaves of each node: one device on each of fewer nodes, then all that there are.
        """
        mesh, near, equal = candidate.mesh, self.cluster.gpus_per_node, self.cluster.has_equal_nodes
        size, last = mesh.size(axis), axis == mesh.names[-1]
        small = 1 if candidate.shape is None else candidate.count * data_parallel(mesh)
        counts = [size] if last and len(mesh.axes) > 1 else []
        across = []
        if enough_ns is not None and equal:
            fewer = [
                n for n in range(2, size)
                if size % n == 0 and (near % n == 0 or (last and n % near == 0))
                and (not last or self.kinds.stand_for(axis, n, size))
            ]  # fmt: skip
            counts = [*fewer, *counts]
            here = axis_groups(candidate.full.axes, self.cluster)[axis].ranks_per_node
            inside = math.prod(n for _, n in candidate.full.axes[candidate.full.index(axis) + 1 :])
            if not last and here < size and (here * inside == near or inside % near == 0):
                across = [(n, 1, near) for n in divisors(size // here) if 1 < n < size] + [(size, 1, inside)]
        few = [count for count in MANY if count < small and small % count == 0]
        many = [*few, small] if last and equal and small > 1 else []
        return [*((count, 1, 1) for count in counts), *across, *((size, count, 1) for count in many)]

    def _floor_ns(
        self, mesh: Mesh, axis: str, size: int, *, inner: bool = False, microbatches: int = 1, inside: int = 1
    ) -> int:
        """From one axis alone: its devices do the work of all. ``inside``: how many lie between two of them."""
        world = math.prod(size for _, size in mesh.axes)
        one = replace(self.alone(axis, size, inside), count=microbatches)
        return (self.free_ns(one, inner=inner, alone=True) or 0) * size // world

    def alone(self, axis: str, size: int, inside: int = 1) -> Candidate:
        """One axis of so many devices, innermost but for so many others ``inside``."""
        full = Mesh((("rest", self.cluster.world_size // (size * inside)), (axis, size), ("inside", inside)))
        return Candidate(mesh=Mesh(((axis, size),)), full=full, count=1, fewest=1)

    def free_ns(
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
        if key in self.known and enough:
            return self.known[key]

        def work() -> Answer | None:
            before, tightened = self.evaluations, key in self.begun
            solver = self.begun.pop(key, None)
            if solver is None:
                solver = self._free_solver(candidate, schedule, inner, alone, tightened=tightened)
            found = None if solver is None else self._raised_ns(candidate, key, solver, enough_ns, rough=rough)
            return None if found is None else Answer(found, self.evaluations - before, key in self.exact)

        alike = key not in self.known and (rough or enough_ns is None)  # follows from nothing that was asked before
        answer = self.asked(("free", key, rough), work) if alike else work()
        if answer is None or answer.exact:
            self.exact.add(key)
        elif key not in self.begun:
            self._keep(key, None)
        self.known[key] = None if answer is None else answer.bound_ns
        return self.known[key]

    def asked(self, key: tuple[object, ...], work: Callable[[], Answer | None]) -> Answer | None:
        """The helper's answer, counted as if it were worked out here, or what ``work`` finds."""
        answer, others = self.helper.asked(key, work)
        if answer is not None and others:
            self.problems, self.evaluations = self.problems + 1, self.evaluations + answer.evaluations
        return answer

    def _keep(self, key: tuple[object, ...], solver: AnySolver | None) -> None:
        self.begun[key] = solver
        if len(self.begun) > BEGUN:
            del self.begun[next(iter(self.begun))]

    def _free_solver(
        self, candidate: Candidate, schedule: str | None, inner: bool, alone: bool, *, tightened: bool
    ) -> AnySolver | None:
        """``tightened``: the helper has begun with it, and it is counted."""
        self.problems -= tightened
        encoded = self.encode(candidate, schedule, ample=True, inner=inner, alone=alone)
        if encoded is None:
            return None
        solver = solver_of(encoded[0].problem, memory_bytes=UNLIMITED_BYTES, most_joined=self.most_joined)
        if tightened:
            solver.tighten()
        else:
            self.evaluations += solver.evaluations
        return solver

    def _raised_ns(
        self, candidate: Candidate, key: tuple[object, ...], solver: AnySolver, enough_ns: int | None, *, rough: bool
    ) -> int | None:
        """Its bound after more work; the solver is kept if there is more to be had. None where nothing is legal."""
        before = solver.evaluations
        if rough:
            solver.tighten()
        free = None if rough and not solver.empty else solver.solution(0, upper_bound_ns=enough_ns)
        self.evaluations += solver.evaluations - before
        if free is None or free.status == "dominated":
            self._keep(key, solver)
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
