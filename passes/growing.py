"""How a region of light operations is put together, from its last one on (``regions.py``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from autopar.ir.graph import Node
from autopar.ir.layout import Layout, Partial, Shard
from autopar.ir.optable import row
from autopar.ir.program import MICROBATCH_AXIS
from autopar.passes.positions import flat_operands
from autopar.passes.strategies import Strategy

MOST_JOINTS = 64


class Way(NamedTuple):
    """A way to place all members: by member the number of its strategy, and what is needed from outside."""

    numbers: tuple[int, ...]
    outside: dict[str, Layout]


class Growing:
    """``members``: the last operation first. ``legal``: of each what it may do. ``widened``: values that members, but
    for views between, first of all repeat. ``whole``: whether its last operation never reads a value in two layouts at
    once; otherwise it is none. ``sizes``: numbers in each value. ``wanted``: layouts in which the first one's results
    may be read, None: in any.
    """

    def __init__(
        self, root: Node, legal: tuple[Strategy, ...], sizes: Mapping[str, int], wanted: AbstractSet[Layout] | None
    ) -> None:  # fmt: skip
        self.members, self.legal = [root], [legal]
        self.wanted, self.sizes, self.widened = wanted, sizes, _widened(root, sizes)
        self.ways = [*_read(root, legal, [Way((n,), {}) for n in range(len(legal))])]
        self.whole = len(self.ways) == len(legal)

    def take(self, node: Node, legal: tuple[Strategy, ...], *, fed: bool) -> bool:
        """Take in an operation whose results only members read, unless a way to place it or them is lost that matters.

        What comes in parts of a sum may be added up before, and views cost nothing. Other splits may go where as many
        devices share the work in another way, but for those that somebody outside asks for: readers of the region, or
        what is heavy in front of it (``fed``: what the operation reads is so made). What repeats values comes after
        conversions, which are dearer behind it.
        """
        own = [value.name for value in node.results]
        if not (self.widened.isdisjoint(own) or _is_view(node)):
            return False
        fit: dict[tuple[Layout | None, ...], list[int]] = {}
        grown: list[Way] = []
        for way in self.ways:
            needs = tuple([way.outside.get(name) for name in own])
            if needs not in fit:
                fit[needs] = [n for n, chosen in enumerate(legal) if _goes_on(chosen, needs)]
            left = {name: layout for name, layout in way.outside.items() if name not in own}
            grown += [Way((*way.numbers, n), left) for n in fit[needs]]
        ways = [*_read(node, legal, grown)]
        if not 0 < len(ways) <= MOST_JOINTS or self._loses(ways) or _lost(node, legal, ways, fed=fed):
            return False
        self.members.append(node)
        self.legal.append(legal)
        self.ways = ways
        self.widened |= _widened(node, self.sizes) if self.widened.isdisjoint(own) else frozenset(node.uses())
        return True

    def _loses(self, ways: Sequence[Way]) -> bool:
        """Whether these leave out what a member may do by itself and should go on doing."""
        for at, (member, legal) in enumerate(zip(self.members, self.legal, strict=True)):
            left = {way.numbers[at] for way in ways}
            gone = {way.numbers[at] for way in self.ways}.difference(left)
            lost = [legal[n] for n in sorted(gone) if not _in_parts(legal[n])]
            if not lost or _is_view(member):
                continue
            if (not at and self._asked_for(lost)) or _less_split(lost, [legal[n] for n in left]):
                return True
        return False

    def _asked_for(self, lost: Sequence[Strategy]) -> bool:
        """Whether readers of the first one may need what it then would not make."""
        return self.wanted is None or any(not self.wanted.isdisjoint(chosen.results) for chosen in lost)


def _read(node: Node, legal: Sequence[Strategy], ways: Sequence[Way]) -> Iterator[Way]:
    """Those ways, which end with an operation that reads its operands now, that need nothing in two layouts."""
    names = [(index, name) for index, name in enumerate(flat_operands(node)) if name is not None]
    for numbers, outside in ways:
        operands, needs = legal[numbers[-1]].operands, dict(outside)
        for index, name in names:
            layout = operands[index]
            assert layout is not None
            if needs.setdefault(name, layout) != layout:
                break
        else:
            yield Way(numbers, needs)


def _lost(node: Node, legal: Sequence[Strategy], ways: Sequence[Way], *, fed: bool) -> bool:
    """Whether these leave out something that the operation which they end with should be able to do."""
    left = {way.numbers[-1] for way in ways}
    lost = [chosen for n, chosen in enumerate(legal) if n not in left and not _in_parts(chosen)]
    if not lost or _is_view(node):
        return False
    return fed or _less_split(lost, [legal[n] for n in left])


def _goes_on(chosen: Strategy, needs: Sequence[Layout | None]) -> bool:
    """Whether what is made is read as it is, or added up where it is made in parts. What comes in parts may be added up
    before."""
    for have, need in zip(chosen.results, needs, strict=True):
        if need is None or have is need or have == need:
            continue
        axes = zip(chosen.choices, have.mesh.names, have.placements, need.placements, strict=True)
        for choice, axis, made, read in axes:
            passed = axis == MICROBATCH_AXIS or choice.partial is not None
            if made != read and (passed or isinstance(made, Shard) or isinstance(read, (Shard, Partial))):
                return False
    return True


def _widened(node: Node, sizes: Mapping[str, int]) -> frozenset[str]:
    """What an operation reads, if it makes more of it."""
    more = sum(sizes[value.name] for value in node.results) > sum(sizes[name] for name in node.uses())
    return frozenset(node.uses()) if more else frozenset()


def _is_view(node: Node) -> bool:
    return row(node).op_class == "view"


def _in_parts(chosen: Strategy) -> bool:
    """Whether parts of a sum come or go."""
    layouts = (*chosen.operands, *chosen.results)
    return any(isinstance(each, Partial) for layout in layouts if layout for each in layout.placements)


def _less_split(lost: Sequence[Strategy], left: Sequence[Strategy]) -> bool:
    return max(map(_parts, lost)) > max(map(_parts, left))


def _parts(chosen: Strategy) -> int:
    """In how many parts the work is."""
    axes = zip(chosen.results[0].mesh.axes, chosen.choices, strict=True)
    return math.prod(size for (_, size), choice in axes if choice.factor)
