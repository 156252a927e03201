"""A mesh: named axes over ranks 0 … n-1, the last axis varying fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Mesh:
    """Logical arrangement of devices. ``axes`` are (name, size), outermost first."""

    axes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names):
            raise ValueError(f"axis named twice in mesh {self}")
        if any(size < 1 for _, size in self.axes):
            raise ValueError(f"axis sizes are at least 1, got {self}")

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Mesh:
        return cls(tuple(sizes.items()))

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @cached_property
    def _hash(self) -> int:
        return hash(self.axes)

    def __hash__(self) -> int:
        return self._hash

    @property
    def world_size(self) -> int:
        return math.prod(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Number of devices along ``axis``; 1 for an axis the mesh does not have."""
        return self.axes[self._index[axis]][1] if axis in self._index else 1

    def index(self, axis: str) -> int:
        return self._index[axis]

    def coordinate(self, rank: int) -> dict[str, int]:
        """Position of ``rank`` on each axis."""
        position = {}
        for name, size in reversed(self.axes):
            rank, position[name] = divmod(rank, size)
        return {name: position[name] for name in self.names}

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """Ranks that differ from ``rank`` on ``axis`` only, in order of their position there."""
        stride = math.prod(size for _, size in self.axes[self.index(axis) + 1 :])
        first = rank - self.coordinate(rank)[axis] * stride
        return tuple(first + i * stride for i in range(self.size(axis)))

    def coordinates(self) -> Iterator[dict[str, int]]:
        return (self.coordinate(rank) for rank in range(self.world_size))


def within(axis: str) -> str:
    """Name of the part of an axis along which neighbours on one node stand."""
    return f"{axis}.inside"


def across(axis: str) -> str:
    """Name of the part of an axis along which one device of each node stands."""
    return f"{axis}.across"
