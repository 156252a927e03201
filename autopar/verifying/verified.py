"""What a verification found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The sharded run equals the single-device run.

    ``placed`` of ``operations``, casts left out, stand as in the plan; the others follow their operands.
    ``gradients``: how many were compared. ``worst``: largest error relative to its tensor, at most ``tolerance``.
    """

    mesh: Mapping[str, int]
    num_microbatches: int
    placed: int
    operations: int
    gradients: int
    worst: float
    tolerance: float

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "mesh": dict(self.mesh), "verified": True}
