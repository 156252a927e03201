"""One candidate of the outer search: a mesh, a number of microbatches, and what is left free inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from autopar.ir.constraints import Constraint
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS

# (axis, neighbours along it), for every axis that may reduce gradients.
Inside: TypeAlias = tuple[tuple[str, int], ...]

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Mode:
    """What a call of a block may decide besides placements: one of ``RECOMPUTE``, the ZeRO level, who shares the parts.

    ``inside``: among how many neighbours along each data axis ZeRO cuts parameters, of which each such group has a
    copy (HSDP); () among all.
    """

    recompute: str
    zero: int
    inside: Inside = ()

    def __str__(self) -> str:
        among = "".join(f",inside {axis}={size}" for axis, size in self.inside)
        return f"recompute={self.recompute},zero={self.zero}{among}"


@dataclass(frozen=True, kw_only=True)
class StoredParameter:
    """A parameter, buffer or constant as it is kept, and the element type that the graph computes with."""

    dtype: str
    shape: tuple[int, ...]
    compute_dtype: str
    trainable: bool
    buffer: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the user fixed or left free (None), and what the model is.

    ``inputs``: (batch dim, sequence dim) of each input.
    ``constraints``: what the user demands of parameters. ``schedule``: of the pipeline, if there is one. ``hybrid``:
    whether ZeRO may cut parameters inside nodes only. ``pooled``: for a bound each device stands for several, which may
    gather parameters only for use. ``uneven``: ranks run unequal numbers of microbatches, so that parameters and
    gradients travel once a step.
    """

    inputs: Mapping[str, tuple[int | None, int | None]]
    optimizer: str = "adamw"
    zero: int | None = None
    recompute: str | None = None
    constraints: tuple[Constraint, ...] = ()
    schedule: str | None = None
    hybrid: bool = True
    pooled: bool = False
    uneven: bool = False

    def modes(
        self, mesh: Mesh, *, block: bool, microbatches: int = 1, ample: bool = False, inside: Inside = ()
    ) -> tuple[Mode, ...]:
        """Modes of a block, or of the root, which is never recomputed and whose parameters are gathered once a step.

        Levels that coincide are offered once: 1 and 2 where there is one microbatch, 2 and 3 of the root.
        ``ample``: without recomputation, which only saves memory, and without HSDP (``rivals`` of other modes). Level 2
        may hide more than 1 does; 3 alone stores parameters finer than they are used. ``inside``: neighbours on one
        node, if HSDP is possible.
        """
        levels: tuple[int, ...] = (0, 1, 2, 3) if block else (0, 1, 3)
        if microbatches == 1:
            levels = (0, 2, 3) if block else (0, 3)
        if self.schedule is not None:  # under a pipeline 1 and 2 coincide
            levels = (0, 1, 3) if block else (0, 1)
        if self.uneven:
            levels = (0, 1)
        if self.zero is not None:
            levels = (self.zero,)
        if self.schedule == "zero_bubble":  # torch: wrong gradients where parameters are sharded again after forward
            levels = tuple(level for level in levels if level != 3)
        reduced = any(mesh.size(axis) > 1 for axis in mesh.names if reduces_gradients(axis))
        if not reduced and not (ample and any(size > 1 for _, size in mesh.axes)):
            levels = (0,)  # a bound may stand for meshes with more axes
        again = RECOMPUTE if block and not ample else ("none",)
        if block and self.recompute is not None:
            again = (self.recompute,)
        hybrid = () if ample else self.hybrid_levels(levels, inside, microbatches=microbatches)
        ways = [*((level, ()) for level in levels), *((level, inside) for level in hybrid)]
        return tuple(Mode(flag, level, among) for level, among in ways for flag in again)

    def hybrid_levels(
        self, levels: tuple[int, ...], inside: Inside, *, microbatches: int
    ) -> tuple[int, ...]:
        """Of ``levels`` those at which cutting inside nodes only may save time: it keeps more than cutting over all.

        It saves what crosses nodes: parameters that are gathered, gradients that are reduced every microbatch. At level
        1, and at 2 once a step, as much crosses. Torch's pipelines do neither.
        """
        if not inside or not self.hybrid or self.schedule is not None or self.uneven:
            return ()
        again = microbatches > 1
        return tuple(level for level in levels if level == 3 or (level == 2 and again))


def cost_level(zero: int, settings: Settings) -> int:
    """The level that a parameter's memory is that of.

    torch's pipelines keep gathered parameters and whole gradients to the end of the step, whatever the level.
    """
    return min(zero, 1) if settings.schedule is not None else zero


# Axes that split the work and never a parameter that is computed with.
DATA_AXES = ("dp", "cp")
# Axes whose gradients the program itself adds up: time, and those that split parameters.
_OWN = ("tp", MICROBATCH_AXIS)


def reduces_gradients(axis: str) -> bool:
    """Whether the runtime may reduce gradients over the axis: dp, cp, and axes of other names, such as ep, where they
    split the work on a parameter and not the parameter."""
    return axis not in _OWN


def with_time(mesh: Mesh, microbatches: int) -> Mesh:
    """The mesh with microbatches as its last axis, if there is more than one."""
    return Mesh((*mesh.axes, (MICROBATCH_AXIS, microbatches))) if microbatches > 1 else mesh
