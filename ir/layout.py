"""Layouts as owned factors: who holds which part of a tensor.

Write each dim of a tensor as a product of factors, major first. A factor is local or owned by one
mesh axis; a device holds its index of every owned factor. ``Shard(dim, outer)`` says that an axis of
size k owns the factor that stands at global stride position ``outer`` of the dim: the digits of the
index are ``outer · k · rest``. Because that position speaks of the *global* dim, it does not change
when another axis is gathered or sliced, and axes are independent of each other:

    8 = dp:2 · tp:2 · 2      dp: Shard(0, outer=1), tp: Shard(0, outer=2)
    8 = 2 · tp:2 · 2         tp: Shard(0, outer=2), the same after gathering dp

Invariants (checked by ``Layout.problem``): owned factors of a dim do not overlap, and sizes divide, but for a
dim that one axis alone owns from position 1: there every device holds ceil(extent / k) elements, the last one
fewer, and what it holds beyond the end (``padded``) means nothing.
Text as torch prints it: ``S(0)``, strided ``S(0)/3``, ``R``, ``R*``, ``P(sum)``; an axis that stacks
directly inside the mesh axes before it prints without ``/outer``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from autopar.ir.mesh import Mesh


class Shard(NamedTuple):
    """The axis owns the factor of ``dim`` at global stride position ``outer``."""

    dim: int
    outer: int = 1


class Replicate(NamedTuple):
    """Every device of the axis holds the same value.

    ``partial_grad`` (printed ``R*``): the consumers each return a part of the gradient.
    """

    partial_grad: bool = False


class Partial(NamedTuple):
    """The value is the reduction (``sum`` or ``max``) of what the devices of the axis hold."""

    op: str = "sum"


Placement: TypeAlias = Shard | Replicate | Partial
R, RSTAR, P = Replicate(), Replicate(partial_grad=True), Partial()


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a dim: ``axis`` owns it, or it is local (None)."""

    size: int
    axis: str | None = None


@dataclass(frozen=True)
class Layout:
    """One placement for each axis of ``mesh``, in the mesh's order."""

    mesh: Mesh
    placements: tuple[Placement, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.mesh, self.placements)))

    def __hash__(self) -> int:  # searches look layouts up by the million
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Layout):
            return NotImplemented
        return self._hash == other._hash and self.placements == other.placements and self.mesh == other.mesh

    @classmethod
    def replicated(cls, mesh: Mesh) -> Layout:
        return _known(mesh, (R,) * len(mesh.axes))

    @classmethod
    def of(cls, mesh: Mesh, placements: Mapping[str, Placement]) -> Layout:
        """Axes that are not named are replicated."""
        return _known(mesh, tuple([placements.get(name, R) for name in mesh.names]))

    @classmethod
    def placed(cls, mesh: Mesh, placements: tuple[Placement, ...]) -> Layout:
        """One placement for each axis, in the mesh's order."""
        return _known(mesh, placements)

    def __getitem__(self, axis: str) -> Placement:
        return self.placements[self.mesh.index(axis)]

    def replace(self, axis: str, placement: Placement) -> Layout:
        return _replaced(self, self.mesh.index(axis), placement)

    @cached_property
    def _owners(self) -> dict[int, tuple[tuple[int, int, str], ...]]:
        found: dict[int, list[tuple[int, int, str]]] = {}
        for (name, size), placement in zip(self.mesh.axes, self.placements, strict=True):
            if isinstance(placement, Shard):
                found.setdefault(placement.dim, []).append((placement.outer, size, name))
        return {dim: tuple(sorted(owners)) for dim, owners in found.items()}

    def owners(self, dim: int) -> tuple[tuple[int, int, str], ...]:
        """(outer, size, axis) of the factors of ``dim`` that are owned, major first."""
        return self._owners.get(dim, ())

    def problem(self, shape: tuple[int, ...]) -> str | None:
        """Why this layout does not fit ``shape``, or None if it does."""
        return _problem(self, shape)

    def _problem(self, shape: tuple[int, ...]) -> str | None:
        for placement in self.placements:
            if isinstance(placement, Shard) and not 0 <= placement.dim < len(shape):
                return f"no dim {placement.dim} in shape {list(shape)}"
        for dim, owners in sorted(self._owners.items()):
            end, extent = 1, shape[dim]
            if self.padded(dim, extent):
                continue
            for outer, size, axis in owners:
                if outer % end or (size > 1 and extent % (outer * size)):
                    return f"axis {axis} of size {size} at stride {outer} does not fit dim {dim} of {list(shape)}"
                end = outer * size
        return None

    def padded(self, dim: int, extent: int) -> bool:
        """Whether one axis alone owns ``dim`` in parts of ceil(extent / k), the last one shorter but not empty."""
        owners = self.owners(dim)
        if len(owners) != 1 or owners[0][0] != 1:
            return False
        size = owners[0][1]
        return extent % size != 0 and -(-extent // size) * (size - 1) < extent

    def is_padded(self, shape: tuple[int, ...]) -> bool:
        """Whether any dim is ``padded``."""
        return any(self.padded(dim, shape[dim]) for dim in self._owners)

    def factors(self, dim: int, extent: int) -> tuple[Factor, ...]:
        """The factors of ``dim``, major first; local factors of size 1 are left out."""
        out: list[Factor] = []
        end = 1
        for outer, size, axis in self.owners(dim):
            if outer > end:
                out.append(Factor(outer // end))
            out.append(Factor(size, axis))
            end = outer * size
        if extent > end or not out:
            out.append(Factor(extent // end))
        return tuple(out)

    def local_outer(self, dim: int, outer: int) -> int:
        """Elements of the *local* dim that stand before global stride position ``outer``."""
        return outer // math.prod(size for at, size, _ in self.owners(dim) if at < outer)

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one device's part, padding included; every device's is the same."""
        local = list(shape)
        for dim, owners in self._owners.items():
            for _, size, _ in owners:
                local[dim] = -(-local[dim] // size)
        return tuple(local)

    def text(self) -> str:
        ends: dict[int, int] = {}
        parts = []
        for (name, size), placement in zip(self.mesh.axes, self.placements, strict=True):
            parts.append(f"{name}:{_print(placement, ends, size)}")
        return ", ".join(parts)

    def axis_text(self, axis: str) -> str:
        """How the placement on one axis prints inside this layout."""
        return dict(part.split(":") for part in self.text().split(", "))[axis]

    def __str__(self) -> str:
        return "{" + self.text() + "}"

    @classmethod
    def parse(cls, text: str, mesh: Mesh) -> Layout:
        """Inverse of ``text``; axes that are absent are replicated."""
        words = dict(part.strip().split(":", 1) for part in text.split(",")) if text.strip() else {}
        unknown = [name for name in words if name not in mesh.names]
        if unknown:
            raise ValueError(f"axis {unknown[0]!r} is not one of the mesh's: {mesh}")
        ends: dict[int, int] = {}
        return cls(mesh, tuple(_parse(words.get(name, "R"), ends, size) for name, size in mesh.axes))


# A search asks both of few layouts, by the hundred thousand.
@functools.lru_cache(maxsize=1 << 16)
def _replaced(layout: Layout, at: int, placement: Placement) -> Layout:
    return _known(layout.mesh, (*layout.placements[:at], placement, *layout.placements[at + 1 :]))


@functools.lru_cache(maxsize=1 << 16)
def _known(mesh: Mesh, placements: tuple[Placement, ...]) -> Layout:
    """One object for equal layouts, which are then told to be equal at once."""
    return Layout(mesh, placements)


@functools.lru_cache(maxsize=1 << 16)
def _problem(layout: Layout, shape: tuple[int, ...]) -> str | None:
    return layout._problem(shape)


def _print(placement: Placement, ends: dict[int, int], size: int) -> str:
    match placement:
        case Shard(dim, outer):
            stacked = outer == ends.get(dim, 1)
            ends[dim] = ends.get(dim, 1) * size
            return f"S({dim})" if stacked else f"S({dim})/{outer}"
        case Replicate(partial_grad):
            return "R*" if partial_grad else "R"
        case Partial(op):
            return f"P({op})"


def _parse(word: str, ends: dict[int, int], size: int) -> Placement:
    if word in ("R", "R*"):
        return RSTAR if word == "R*" else R
    if match := re.fullmatch(r"P\((sum|max)\)", word):
        return Partial(match[1])
    if match := re.fullmatch(r"S\((\d+)\)(?:/(\d+))?", word):
        dim = int(match[1])
        outer = int(match[2]) if match[2] else ends.get(dim, 1)
        ends[dim] = ends.get(dim, 1) * size
        return Shard(dim, outer)
    raise ValueError(f"not a placement: {word!r} (S(0), S(0)/3, R, R*, P(sum), P(max))")


def stacked(mesh: Mesh, owned: Iterable[tuple[str, int, int]]) -> dict[str, Placement]:
    """Placements of axes that want positions of the same dims: ``owned`` holds (axis, dim, outer).

    Axes with the same (dim, outer) stack in the order given: the second owns the next factor inside.
    """
    taken: dict[tuple[int, int], int] = {}
    placements: dict[str, Placement] = {}
    for axis, dim, outer in owned:
        inside = taken.get((dim, outer), 1)
        placements[axis] = Shard(dim, outer * inside)
        taken[dim, outer] = inside * mesh.size(axis)
    return placements
