"""What the problems of meshes share, of the latest meshes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from autopar.ir.constraints import Constraint
from autopar.passes.ground import Ground
from autopar.passes.outer import Candidate
from autopar.passes.timeless import Timeless

LATEST, LATEST_TIMELESS = 32, 128

Key: TypeAlias = tuple[object, ...]


@dataclass(eq=False)
class Grounds:
    """Searches of one model on one cluster may have them in common, whatever they leave free but constraints."""

    latest: dict[Key, Ground] = field(default_factory=dict)
    timeless: dict[Key, Timeless] = field(default_factory=dict)

    def of(
        self, candidate: Candidate, constraints: tuple[Constraint, ...], *, inner: bool,
        make: Callable[[Timeless], Ground],
    ) -> Ground:  # fmt: skip
        """That of a candidate's mesh and number of microbatches; ``inner``: as in ``Positions``."""
        mesh = candidate.full.axes, candidate.mesh.axes, inner, constraints, candidate.uneven
        key = *mesh, candidate.count
        ground = self.latest.pop(key, None) or make(self._timeless((*mesh, candidate.count > 1)))
        self.latest[key] = ground
        if len(self.latest) > LATEST:
            del self.latest[next(iter(self.latest))]
        return ground

    def _timeless(self, key: Key) -> Timeless:
        found = self.timeless[key] = self.timeless.pop(key) if key in self.timeless else Timeless()
        if len(self.timeless) > LATEST_TIMELESS:
            del self.timeless[next(iter(self.timeless))]
        return found
