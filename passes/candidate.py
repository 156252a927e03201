"""One candidate of the outer search: a mesh, a number of microbatches, and what is left free inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.constraints import Constraint
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS


@dataclass(frozen=True, slots=True)
class Mode:
    """What a call of a block may decide besides placements."""

    recompute: bool
    zero: int

    def __str__(self) -> str:
        return f"recompute={'full' if self.recompute else 'none'},zero={self.zero}"


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
    ``constraints``: what the user demands of parameters. ``schedule``: of the pipeline, if there is one.
    """

    inputs: Mapping[str, tuple[int | None, int | None]]
    optimizer: str = "adamw"
    zero: int | None = None
    recompute: str | None = None
    constraints: tuple[Constraint, ...] = ()
    schedule: str | None = None

    def modes(self, mesh: Mesh, *, block: bool) -> tuple[Mode, ...]:
        """Modes of a block, or of the root, which is never recomputed."""
        sharded = any(mesh.size(axis) > 1 for axis in mesh.names if reduces_gradients(axis))
        levels: tuple[int, ...] = (self.zero,) if self.zero is not None else (0, 3) if sharded else (0,)
        if self.schedule == "zero_bubble":  # torch: wrong gradients where parameters are sharded again after forward
            levels = tuple(level for level in levels if level != 3)
        flags = (
            {None: (False, True), "none": (False,), "full": (True,)}[self.recompute] if block else (False,)
        )
        return tuple(Mode(flag, level if sharded else 0) for level in levels for flag in flags)


# Axes that split the work and never a parameter that is computed with.
DATA_AXES = ("dp", "cp")
# Axes whose gradients the program itself adds up: time, and those that split parameters.
_OWN = ("tp", "ep", MICROBATCH_AXIS)


def reduces_gradients(axis: str) -> bool:
    """Whether the runtime may reduce gradients over the axis: dp, cp, and axes of other names where they split the
    work on a parameter and not the parameter."""
    return axis not in _OWN


def with_time(mesh: Mesh, microbatches: int) -> Mesh:
    """The mesh with microbatches as its last axis, if there is more than one."""
    return Mesh((*mesh.axes, (MICROBATCH_AXIS, microbatches))) if microbatches > 1 else mesh
