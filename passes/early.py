"""What of the main graph runs before the first microbatch, once for the whole batch, and what every microbatch runs.

A value *crosses* where its consumer needs it otherwise over time than it is made: a number of the whole batch, such as
that of valid labels, where each microbatch has its part. What leads to it is *early*. Time is no choice of the search:
which values cross is known before any layout is chosen.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from autopar.ir.calls import carried
from autopar.ir.graph import SOURCES, Graph
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS
from autopar.passes.positions import flat_operands
from autopar.passes.strategies import Strategy

_WHOLE = ".whole"


class Use(NamedTuple):
    """Of a value, by the node with this first result; by what every microbatch runs if None."""

    by: str | None
    crosses: bool


@dataclass(frozen=True, kw_only=True)
class Timing:
    """First results of nodes that run ``early``, and of those that are ``late``; some are both, but for sources."""

    early: AbstractSet[str]
    late: AbstractSet[str]

    def is_late(self, use: Use) -> bool:
        """Whether a microbatch needs the value itself for it."""
        return not use.crosses and (use.by is None or use.by in self.late)

    def is_early(self, use: Use) -> bool:
        """Whether the value of the whole batch is needed for it."""
        return use.by in self.early or (use.crosses and (use.by is None or use.by in self.late))


def timing(graph: Graph, uses: Mapping[str, Sequence[Use]], pure: AbstractSet[str]) -> Timing:
    """Of a main graph.

    ``uses``: of each value by operations, and of what is returned; ``pure``: values that follow from inputs and buffers
    alone. Requires: consumers stand behind what they use.
    """
    early: set[str] = set()
    late = {node.results[0].name for node in graph.nodes if any(value.name not in pure for value in node.results)}
    found = Timing(early=early, late=late)
    handed: set[str | None] = set()
    for node in reversed(graph.nodes):
        if node.target == "call":
            handed.update(node.operands[: carried(node)])  # type: ignore[arg-type]
            late.add(node.results[0].name)
        elif node.target not in SOURCES:
            names = [value.name for value in node.results]
            own = [use for name in names for use in uses.get(name, ())]
            if any(map(found.is_late, own)) or not handed.isdisjoint(names):
                late.add(names[0])
            if any(map(found.is_early, own)):
                early.add(names[0])
    return found


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A main graph with its strategies; ``given``: layouts of its sources; ``pure``: values that follow from the inputs
    and buffers alone."""

    graph: Graph
    chosen: Mapping[str, Strategy]
    given: Mapping[str, Layout]
    pure: AbstractSet[str]

    @cached_property
    def made(self) -> Mapping[str, Layout]:
        """The layout in which each value is made, but for what calls give."""
        found = dict(self.given)
        for node in self.graph.nodes:
            if (one := self.chosen.get(node.results[0].name)) is not None:
                found.update((value.name, layout) for value, layout in zip(node.results, one.results, strict=True))
        return found

    def crosses(self, name: str, need: Layout | None) -> bool:
        """Whether the value is needed otherwise over time than it is made."""
        have = self.made.get(name) if name in self.pure else None
        return have is not None and need is not None and leaves_time(have, need)

    def timing(self, calls: Mapping[str, Sequence[Layout]], outputs: Mapping[str, Layout | None]) -> Timing:
        """``calls``: by first result, what each needs of its operands; ``outputs``: in which layouts what is asked
        for leaves."""
        uses = {name: [Use(None, self.crosses(name, need))] for name, need in outputs.items()}
        for node in self.graph.nodes:
            if node.target in SOURCES:
                continue
            by, call = node.results[0].name, node.target == "call"
            needs = calls[by] if call else self.chosen[by].operands
            for name, need in zip(flat_operands(node), needs, strict=True):
                if name is not None:
                    uses.setdefault(name, []).append(Use(None if call else by, self.crosses(name, need)))
        return timing(self.graph, uses, self.pure)


def entering_name(name: str, number: int) -> str:
    """What a value is called where it comes into the main graph from before the first microbatch."""
    return f"{name}.{number}{_WHOLE}"


def origin(name: str) -> str:
    """The value behind an ``entering_name``; any other is its own."""
    return name.removesuffix(_WHOLE).rpartition(".")[0] if name.endswith(_WHOLE) else name


def leaves_time(have: Layout, need: Layout) -> bool:
    """Whether the two differ over time."""
    return have.mesh.names[-1:] == (MICROBATCH_AXIS,) and have.placements[-1] != need.placements[-1]


def without_time(layout: Layout) -> Layout:
    """The layout on the mesh of the processes."""
    if MICROBATCH_AXIS not in layout.mesh.names:
        return layout
    assert layout.mesh.names[-1] == MICROBATCH_AXIS
    return Layout.placed(_processes(layout.mesh), layout.placements[:-1])


@functools.lru_cache(maxsize=1 << 10)
def _processes(mesh: Mesh) -> Mesh:
    return Mesh(mesh.axes[:-1])
