"""What a user knows of a model: this parameter is replicated, that one is split."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from autopar.ir.layout import Layout, Shard


@dataclass(frozen=True, slots=True)
class Constraint:
    """Parameters whose name matches ``pattern`` (``*``, ``?``, ``[...]``) are computed with as said.

    ``dim`` and ``axis`` None: whole on every device. Else: split in ``dim`` over mesh axis ``axis``.
    """

    pattern: str
    dim: int | None = None
    axis: str | None = None

    def __str__(self) -> str:
        if self.axis is None:
            return f"replicate:{self.pattern}"
        return f"split:{self.pattern}:dim={self.dim},axis={self.axis}"

    def matches(self, fqn: str) -> bool:
        return fnmatch.fnmatchcase(fqn, self.pattern)

    def allows(self, layout: Layout) -> bool:
        """Whether computing may need the parameter in this layout."""
        if self.axis is None:
            return not any(isinstance(placement, Shard) for placement in layout.placements)
        placement = layout[self.axis] if self.axis in layout.mesh.names else None
        return isinstance(placement, Shard) and placement.dim == self.dim


def replicate(pattern: str) -> Constraint:
    """Parameters whose name matches ``pattern`` are whole on every device that computes with them."""
    return Constraint(pattern)


def split(pattern: str, *, dim: int, axis: str) -> Constraint:
    """Parameters whose name matches ``pattern`` are split in ``dim`` over mesh axis ``axis``."""
    return Constraint(pattern, dim, axis)
