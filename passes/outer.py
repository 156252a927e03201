"""The outer choices of a search: meshes, pipelines, schedules and numbers of microbatches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from autopar.cost_model import Cluster
from autopar.ir.constraints import Constraint
from autopar.ir.errors import InfeasibleError
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS
from autopar.ir.program import DATA_AXIS
from autopar.passes.candidates import (
    MIXED_AXIS,
    MOST_AXES,
    data_parallel,
    fitting,
    microbatch_counts,
    mixed_meshes,
    orders,
    pinned_meshes,
    pipeline_places,
    searched_meshes,
    with_pipeline,
)
from autopar.passes.found import UNREACHABLE_NS, Limits
from autopar.passes.pipelining import Shape, rounds_of, shapes

# Axes bound to the batch or to parameters make plans that are easier to read: one that is bound to nothing must be
# faster by this factor. What it could have gained counts in the gap.
MIXED_PAYS = 0.99
# So must a pipeline that nobody asked for: its model has no plain forward.
PIPELINE_PAYS = 0.99
# And a third axis beside that of experts.
THIRD_PAYS = 0.99
# Kernels of small microbatches are slower than rates say: shares that halve them must be faster by this factor.
FINER_PAYS = 0.995
EXPERT_AXIS = "ep"
NAMED = 3  # meshes in the text of an error


class Rung(IntEnum):
    """What a candidate's bound comes from, each tighter and dearer than the one before."""

    NOTHING = 0
    DEVICE = 1  # one device doing everything
    POOLED = 2  # one device doing everything within the memory of all
    HEAVY = 3  # what has most of the weights, on its mesh
    PRIME = 4  # the fewest devices along one of its axes
    AXIS = 5  # each axis alone, or fewer devices along it
    FEWEST = 6  # its mesh with the fewest microbatches that may fit, memory ignored, at little work
    SHARED = 7  # where memory binds: each axis alone, with the memory of all
    ROUGH = 8  # itself, memory ignored, at little work
    OWN = 9  # itself, memory ignored
    STAGED = 10  # of a pipeline: itself, within memory, at little work
    PRICED = 11  # of others: itself, memory at the price that it had elsewhere
    LIMITED = 12  # itself, within memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """One mesh with a number of microbatches; ``bound_ns`` holds for it and for all larger numbers (``more``).

    ``full``: the mesh of all processes, which has the pipeline's axis besides. ``handicap``: what its times are
    multiplied with when they are compared. ``fewest``: microbatches that its mesh may have. ``bound_ns`` is the time of
    all work on the devices of one stage. ``late``: of equal bounds it comes after others. ``uneven``: data-parallel
    ranks take unequal shares of the batch, ``count`` microbatches each on average.
    """

    mesh: Mesh
    full: Mesh
    count: int
    fewest: int
    more: tuple[int, ...] = ()
    handicap: float = 1.0
    shape: Shape | None = None
    bound_ns: int = 0
    rung: Rung = Rung.NOTHING
    late: bool = False
    uneven: bool = False

    @property
    def schedule(self) -> str | None:
        return None if self.shape is None else self.shape.schedule

    @property
    def stretch(self) -> float:
        """Time of a step over that of all work on the devices of one stage."""
        return 1.0 if self.shape is None else self.shape.stretch / self.shape.places

    @property
    def step_bound_ns(self) -> float:
        """Bound on the time of a step."""
        return self.bound_ns * self.stretch

    @property
    def fits(self) -> bool:
        """Whether it may fit in memory. What surely does not has ``UNREACHABLE_NS`` as a bound, or its share of it."""
        return self.bound_ns < UNREACHABLE_NS // math.prod(size for _, size in self.full.axes)

    def bound_of(self, rank: float) -> int:
        """What ``bound_ns`` gives it so high a rank."""
        return int(min(rank / (self.handicap * self.stretch), UNREACHABLE_NS))

    @property
    def rank(self) -> tuple[float, bool, tuple[tuple[str, int], ...], int, str]:
        """What comes first in the search."""
        return self.step_bound_ns * self.handicap, self.late, self.full.axes, self.count, self.schedule or ""


def outer_candidates(
    limits: Limits, world_size: int, batch: int | None, sequence: int | None, layers: int, experts: int = 1,
    cluster: Cluster | None = None,
) -> list[Candidate]:  # fmt: skip
    """Every outer choice within the limits, none of them bounded yet.

    ``layers``: calls of repeated blocks. ``experts``: what sizes of ep divide, 1 without experts. ``cluster``: on which
    meshes without a pipeline are tried in both orders of their axes.

    Raises UsageError where ``limits.mesh`` fits nothing.
    """
    pinned = limits.mesh
    found: list[Candidate] = []
    for places in pipeline_places(pinned, world_size, layers):
        for mesh in _meshes(limits, world_size, places, batch, sequence, experts, cluster):
            counts = (
                microbatch_counts(
                    batch or 1, data_parallel(mesh) * mesh.size(MIXED_AXIS), rounds_of(limits.schedule, places)
                )
                if limits.microbatches is None
                else (limits.microbatches,)
            )
            found += _of_mesh(mesh, limits, places, counts)
    return found


def by_experts(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those first that share experts out most: where memory is short, no others of a mixture are nearer to it."""
    return sorted(candidates, key=lambda candidate: -candidate.mesh.size(EXPERT_AXIS))


def with_shares(candidates: Sequence[Candidate], devices: int) -> list[Candidate]:
    """Those besides in which unequal devices, of so many kinds, take unequal shares, for each number of microbatches.

    Of meshes of the axis dp alone, on which nothing is exchanged within a microbatch.
    """
    plain = [c for c in candidates if devices > 1 and c.shape is None and c.mesh.names == (DATA_AXIS,)]
    return [
        replace(c, count=count, fewest=count, more=(), uneven=True, handicap=FINER_PAYS ** -math.log2(count))
        for c in plain for count in (c.count, *c.more) if count > 1
    ]  # fmt: skip


def admitted(candidates: Iterable[Candidate], constraints: Sequence[Constraint]) -> list[Candidate]:
    """Those with the pipeline stages, and the devices of each, that constraints name.

    Raises InfeasibleError naming the constraint where there is none.
    """
    left = list(candidates)
    for constraint in constraints:
        kept = [candidate for candidate in left if _admits(candidate, constraint)]
        if left and not kept:
            others = ", ".join(dict.fromkeys(f"mesh({candidate.full})" for candidate in left[:NAMED]))
            wants = (
                f"a pipeline of {constraint.index + 1} stages or more" if constraint.index is not None
                else f"pipeline stages of {constraint.devices} devices"
            )  # fmt: skip
            more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
            raise InfeasibleError(
                f"constraint {constraint} needs {wants}; what else was asked for leaves {others}{more}",
                details={"conflict": [str(constraint)]},
            )
        left = kept
    return left


def _admits(candidate: Candidate, constraint: Constraint) -> bool:
    stages = 1 if candidate.shape is None else candidate.shape.stages
    devices = math.prod(size for _, size in candidate.mesh.axes)
    return (constraint.index is None or constraint.index < stages) and constraint.devices in (None, devices)


def _meshes(
    limits: Limits, world_size: int, places: int, batch: int | None, sequence: int | None, experts: int,
    cluster: Cluster | None,
) -> list[Mesh]:  # fmt: skip
    """Meshes of one place of the pipeline."""
    world, count = world_size // places, limits.microbatches
    if limits.mesh is not None:
        return fitting(pinned_meshes(limits.mesh, world), batch, sequence, count)
    tried: Iterable[Mesh] = searched_meshes(world, batch or 1, sequence, experts)
    if places == 1:
        tried = itertools.chain(tried, mixed_meshes(world, batch or 1))
    else:  # of three axes one splits the batch
        tried = (mesh for mesh in tried if not {"cp", "tp"} <= set(mesh.names) and len(mesh.axes) < MOST_AXES)
    if cluster is not None and places == 1:
        tried = itertools.chain.from_iterable(orders(mesh, cluster) for mesh in tried)
    return fitting(tried, batch, sequence, count, strict=places == 1)


def _of_mesh(mesh: Mesh, limits: Limits, places: int, counts: tuple[int, ...]) -> Iterator[Candidate]:
    pinned = limits.mesh or {}
    full = mesh if places == 1 else with_pipeline(mesh, tuple(pinned), places)
    third = THIRD_PAYS if len(mesh.axes) == MOST_AXES else 1.0
    pays = PIPELINE_PAYS if places > 1 else MIXED_PAYS if MIXED_AXIS in mesh.names else third
    handicap = 1 / pays if limits.mesh is None else 1.0
    strict = pinned.get(PIPELINE_AXIS) == places
    return of_mesh(full, counts, limits.schedule, handicap=handicap, strict=strict)


def of_mesh(
    full: Mesh, counts: tuple[int, ...], schedule: str | None, *, handicap: float = 1.0, strict: bool = False,
    equal: bool = False,
) -> Iterator[Candidate]:  # fmt: skip
    """The candidates of one mesh of all processes.

    ``equal``: stages have equal numbers of layers. Raises UsageError where ``strict`` and no number of microbatches
    suits its pipeline.
    """
    mesh = Mesh(tuple(axis for axis in full.axes if axis[0] != PIPELINE_AXIS))
    if PIPELINE_AXIS not in full.names:
        yield Candidate(mesh=mesh, full=full, count=counts[0], more=counts[1:], handicap=handicap, fewest=counts[0])
        return
    known = shapes(schedule, full.size(PIPELINE_AXIS), counts, strict=strict, equal=equal)
    fewest = min((shape.microbatches for shape in known), default=1)
    for shape in known:
        yield Candidate(
            mesh=mesh, full=full, count=shape.microbatches, shape=shape, fewest=fewest, handicap=handicap
        )
