"""Long chains of repeated calls in an exported graph, of which only the ends need be read.

Each call of a chain is given what the one before it made, and nothing else uses that. What lies between the ends
is alike: folding needs to see no more of it than that it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain as flat
from typing import Any

from torch import fx

from autopar.passes.fold.gaps import Gap
from autopar.passes.trace.instances import Instance
from autopar.passes.trace.repeats import REPEAT_ONE, REPEATS
from autopar.passes.trace.replay import Region

AHEAD, BEHIND = 3, 2
"""Repeated calls of a chain that are read, besides the one that leads."""


@dataclass(frozen=True, kw_only=True)
class Middle:
    """``nodes``: calls of a chain that need not be read. ``before``: the one whose results stand for theirs."""

    before: fx.Node
    nodes: tuple[fx.Node, ...]
    gap: Gap


def middles(
    graph: fx.Graph,
    regions: Mapping[int, Region],
    repeated: Sequence[tuple[Instance, Instance]],
    written: AbstractSet[str],
) -> Iterator[Middle]:
    """The middle of each long chain in ``graph``.

    A chain in a part that is itself repeated is read whole, and so is one whose tensors may be ``written``, or those of
    the call that it repeats: the graph has to say so of each.
    """
    sites = {
        node.args[0] for region in regions.values() for node in region.module.graph.nodes if node.target in REPEATS
    }
    within = set(flat.from_iterable(region.nodes for site, region in regions.items() if site in sites))
    for chain in _chains([node for node in graph.nodes if node.target in REPEATS and node not in within]):
        middle = chain[AHEAD:-BEHIND]
        if not middle:
            continue
        rows = [repeated[node.args[1]][1].tensors for node in chain[AHEAD - 1 : 1 - BEHIND]]  # type: ignore[index]
        gap = Gap(before=rows[0], missing=tuple(rows[1:-1]), after=rows[-1])
        led = repeated[chain[0].args[1]][0].tensors  # type: ignore[index]
        if gap.columns() and written.isdisjoint(flat(led, *rows)):
            yield Middle(before=chain[AHEAD - 1], nodes=tuple(middle), gap=gap)


def _chains(calls: Sequence[fx.Node]) -> Iterator[Sequence[fx.Node]]:
    """Maximal stretches of ``calls`` that hand on the same results to the same arguments."""
    begin, link = 0, None
    for at in range(1, len(calls) + 1):
        following = _link(calls[at - 1], calls[at]) if at < len(calls) else None
        if following is None or following != (link or following):
            yield calls[begin:at]
            begin, link = at, None
        else:
            link = following


def _link(first: fx.Node, second: fx.Node) -> tuple[int | None, ...] | None:
    """Of each tensor that ``second`` is given the number of the result of ``first`` that it is; None: both get it.

    None if they are no chain.
    """
    numbers: dict[Any, Any] = (
        {first: 0} if first.target is REPEAT_ONE else {result: result.args[1] for result in first.users}
    )
    if first.args[0] != second.args[0] or any(not set(result.users) <= {second} for result in numbers):
        return None
    found: list[int | None] = []
    for before, given in zip(first.args[2], second.args[2], strict=True):  # type: ignore[arg-type]
        if given in numbers:
            found.append(numbers[given])
        elif given is before:
            found.append(None)
        else:
            return None
    return tuple(found) if any(at is not None for at in found) else None
