"""The outer choices: every mesh of at most two axes that is worth trying, of three where experts are on one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

from autopar.cost_model import Cluster, axis_groups
from autopar.ir.errors import UsageError
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS

# Searched axes, outermost first: tensor parallelism mostly talks most and stays among neighbours.
SEARCHED_AXES = ("dp", "cp", "ep", "tp")
# Axes along which devices exchange what grows with the work, however few they are.
SENDING_AXES = ("cp", "tp")
MOST_AXES = 3  # with ep; 2 without
# One axis over all devices that may split the batch here and parameters there: a data-parallel backbone with a
# split classifier. Its name binds it to nothing.
MIXED_AXIS = "mix"
# Divisors that are all tried as numbers of microbatches; how many times the one before others are (decision 0056).
FEW, APART = 6, 3


def divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return (*small, *(number // d for d in reversed(small) if d * d < number))


def searched_meshes(world_size: int, batch: int, sequence: int | None, experts: int = 1) -> Iterator[Mesh]:
    """Meshes over all devices: data axes divide the batch, cp the sequence, ep the experts and the batch too."""
    every = divisors(world_size)
    for dp, cp, ep in itertools.product(every, every, [size for size in every if experts % size == 0]):
        tp, left = divmod(world_size, dp * cp * ep)
        if left or not tp:
            continue
        axes = tuple((axis, size) for axis, size in zip(SEARCHED_AXES, (dp, cp, ep, tp), strict=True) if size > 1)
        names = dict(axes).keys()
        if {"cp", "ep"} <= names or len(axes) > MOST_AXES - ("ep" not in names):
            continue
        mesh = Mesh(axes or (("dp", 1),))
        if batch % data_parallel(mesh) == 0 and (sequence or 1) % mesh.size("cp") == 0:
            yield mesh


def orders(mesh: Mesh, cluster: Cluster) -> Iterator[Mesh]:
    """A mesh of all devices, and one of two axes turned around where other neighbours come to share nodes: gradients
    that are more than what tensor parallelism sends stay inside nodes then."""
    yield mesh
    turned = Mesh(mesh.axes[::-1])
    if len(mesh.axes) == 2 and axis_groups(mesh.axes, cluster) != axis_groups(turned.axes, cluster):
        yield turned


def data_parallel(mesh: Mesh) -> int:
    """Into how many parts the axes that are bound to the batch cut it."""
    return mesh.size("dp") * mesh.size("ep")


def mixed_meshes(world_size: int, batch: int) -> Iterator[Mesh]:
    """All devices on one axis that is bound to nothing."""
    if world_size > 1 and batch % world_size == 0:
        yield Mesh(((MIXED_AXIS, world_size),))


def pipeline_places(pinned: Mapping[str, int] | None, world_size: int, layers: int) -> tuple[int, ...]:
    """Sizes of the pipeline axis that are tried: those with a layer for each place where all is searched, 1 where
    other axes are pinned. Raises UsageError where it fits no world.
    """
    if pinned is None:
        return tuple(size for size in divisors(world_size) if size <= max(layers, 1))
    size = pinned.get(PIPELINE_AXIS, 1)
    if size == -1:
        return divisors(world_size)
    if size < 1 or world_size % size:
        works = ", ".join(map(str, divisors(world_size)))
        raise UsageError(f"mesh pp={size} does not divide the {world_size} devices: sizes that work are {works}")
    return (size,)


def with_pipeline(mesh: Mesh, order: tuple[str, ...], places: int) -> Mesh:
    """The mesh of all processes: ``pp`` where the user named it, else outermost, since stages talk least; axes that
    were not named behind."""
    order = order if PIPELINE_AXIS in order else (PIPELINE_AXIS, *order)
    sizes = {**dict(mesh.axes), PIPELINE_AXIS: places}
    names = [*(axis for axis in order if axis in sizes), *(axis for axis in sizes if axis not in order)]
    return Mesh(tuple((axis, sizes[axis]) for axis in names))


def pinned_meshes(pinned: Mapping[str, int], world_size: int) -> Iterator[Mesh]:
    """Meshes of one pipeline stage with the axes given, in the order given; -1 leaves a size free.

    Raises UsageError where no size fits the world.
    """
    axes = {axis: size for axis, size in pinned.items() if axis != PIPELINE_AXIS}
    bad = [axis for axis, size in axes.items() if size != -1 and size < 1]
    if bad or "mb" in axes:
        raise UsageError(
            f"mesh {bad[0] if bad else 'mb'}: a size is 1 or more, or -1 to leave it free; mb is reserved"
        )
    free = [axis for axis, size in axes.items() if size == -1]
    fixed = math.prod(size for size in axes.values() if size != -1)
    rest, left = divmod(world_size, fixed)
    if left or (not free and rest != 1):
        raise UsageError(
            f"mesh {', '.join(f'{a}={s}' for a, s in axes.items())} has {fixed} devices, the cluster has {world_size}"
        )
    for sizes in itertools.product(divisors(rest), repeat=len(free)):
        if math.prod(sizes) == rest:
            chosen = {**axes, **dict(zip(free, sizes, strict=True))}
            yield Mesh(tuple(chosen.items()) or (("dp", world_size),))


def fitting(
    meshes: Iterable[Mesh], batch: int | None, sequence: int | None, microbatches: int | None, *, strict: bool = True
) -> list[Mesh]:
    """Those of the meshes over whose data axes batch, microbatches and sequence divide evenly.

    Raises UsageError naming the extent, the axis and the sizes that work where none is left and ``strict``.
    """
    known, problem = list(meshes), ""
    kept = []
    for mesh in known:
        found = _unfit(mesh, batch, sequence, microbatches)
        problem = problem or found
        if not found:
            kept.append(mesh)
    if strict and not kept and problem:
        raise UsageError(problem)
    return kept


def _unfit(mesh: Mesh, batch: int | None, sequence: int | None, microbatches: int | None) -> str:
    """Why the batch or the sequence cannot be split over the mesh; empty where it can."""
    for axis, extent, what in (("dp", batch, "batch"), ("cp", sequence, "sequence")):
        size = mesh.size(axis)
        if size > 1 and extent is None:
            return f"mesh {axis}={size}: no input has a {what} dim that could be split over {axis}; leave {axis} out"
        if extent is not None and extent % size:
            works = ", ".join(map(str, divisors(extent)))
            return (
                f"mesh {axis}={size} does not divide the {what} of {extent} in the example inputs: sizes of {axis} "
                f"that work are {works}; or change the {what} to a multiple of {size}"
            )
    if mesh.size("ep") > 1 and (batch is None or batch % data_parallel(mesh)):
        return (
            f"mesh({mesh}): tokens enter sharded over ep too, and a batch of {batch} cannot be cut into dp x ep = "
            f"{data_parallel(mesh)} parts; choose sizes whose product divides it"
        )
    local = (batch or 1) // data_parallel(mesh)
    if microbatches is not None and local % microbatches:
        works = ", ".join(map(str, divisors(local)))
        return (
            f"num_microbatches={microbatches} does not divide the {local} samples that each device has of the batch of "
            f"{batch} on mesh({mesh}): numbers that work are {works}"
        )
    return ""


def microbatch_counts(batch: int, data_parallel: int, multiple: int = 1) -> tuple[int, ...]:
    """Divisors of one device's batch that are divisible by ``multiple``, if any are: all if they are ``FEW``, else
    powers of two, and of larger ones so few that each is ``APART`` times the one before, the last of one sample each.
    """
    local = batch // data_parallel if batch % data_parallel == 0 else 1
    multiple = multiple if local % multiple == 0 else 1
    every = divisors(whole := local // multiple)
    counts: list[int] = []
    for part in every:
        near = counts and part not in (2 * counts[-1], whole) and part < APART * counts[-1]
        if len(every) <= FEW or not near:
            counts.append(part)
    return tuple(multiple * part for part in counts)
