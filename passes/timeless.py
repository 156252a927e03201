"""What problems of one mesh share in any number of microbatches: what parameters cost, of which time holds no part."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autopar.ir.layout import Layout, Shard
from autopar.ir.program import MICROBATCH_AXIS

if TYPE_CHECKING:
    from autopar.passes.edges import Edge
    from autopar.passes.upkeep import Upkeep


@dataclass(eq=False)
class Timeless:
    """By all that they follow from: what it costs to keep parameters, and to bring them to where they are used."""

    upkeep: dict[tuple[object, ...], Upkeep] = field(default_factory=dict)
    edges: dict[tuple[object, ...], Edge] = field(default_factory=dict)


def marks(layouts: Iterable[Layout]) -> tuple[object, ...]:
    """Layouts as they are told apart on one mesh, the same in all numbers of microbatches above one if none of them
    holds a part in time."""
    return tuple(map(_mark, layouts))


@functools.lru_cache(maxsize=1 << 16)
def _mark(layout: Layout) -> object:
    timed = layout.mesh.names[-1:] == (MICROBATCH_AXIS,) and isinstance(layout.placements[-1], Shard)
    return layout if timed else layout.placements
