"""What many tests hand to ``parallelize`` beside a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OnMesh:
    """A mesh, and other arguments of ``parallelize`` by name. Who extends it says which model."""

    mesh: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return math.prod(self.mesh.values())

    def words(self, model: str) -> list[str]:
        """What tells cases apart, for names of tests: model, mesh, options."""
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh.items())
        return [model.replace(" ", "-"), mesh, *(f"{key}={value}" for key, value in self.options.items())]
