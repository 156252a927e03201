"""Weights that calls of a block share and that are alike: read by like operations at the same operand.

A block is solved for every way in which what its calls share may be used. One layer that is called again and again
shares a dozen weights; a stack of layers so many that they are used alike, as those of layers in a chain of calls are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence

from autopar.ir.graph import Graph, Node
from autopar.ir.layout import Layout
from autopar.passes.positions import flat_operands

MOST = 24  # shared values that may be used in ways of their own; an array has no more than 64 dims, some 32
MOST_WAYS = (1 << 14, 1 << 21, 1 << 21)  # in all, before weights are used alike that are so closely, less, of one type


def used_alike(block: Graph, given: Mapping[str, Sequence[Layout]], weights: Sequence[str]) -> dict[str, str]:
    """By the name of a weight the first that is alike, itself perhaps.

    ``given``: in which layouts each shared input may be used; ``weights``: which of these are parameters or buffers.
    """
    found = {name: name for name in weights}
    types = {source.result.name: source.result.type for source in block.sources("input")}
    steps = _reads(block)
    for most in MOST_WAYS:
        ones = {found.get(name, name): len(layouts) for name, layouts in given.items()}
        if not weights or (math.prod(ones.values()) <= most and len(ones) <= MOST):
            break
        first: dict[Hashable, str] = {}
        reads = next(steps)
        found = {name: first.setdefault((types[name], *given[name], reads.get(name)), name) for name in weights}
    return found


def _reads(block: Graph) -> Iterator[dict[str, Hashable]]:
    """Of each value who reads it: operations with those before and behind them, then by themselves, then nothing."""
    kinds = {value.name: (_kind(node), at) for node in block.nodes for at, value in enumerate(node.results)}
    users: dict[str, set[Hashable]] = {name: set() for name in kinds}
    for node in block.nodes:
        for at, name in enumerate(flat_operands(node)):
            if name is not None:
                users[name].add((_kind(node), at))
    near: dict[str, set[Hashable]] = {name: set() for name in kinds}
    for node in block.nodes:
        ahead = tuple(name and kinds[name] for name in flat_operands(node))
        behind = tuple(frozenset(users[value.name]) for value in node.results)
        for at, name in enumerate(flat_operands(node)):
            if name is not None:
                near[name].add((_kind(node), at, ahead, behind))
    yield {name: frozenset(found) for name, found in near.items()}
    yield {name: frozenset(found) for name, found in users.items()}
    yield {}


def _kind(node: Node) -> Hashable:
    """What it computes; of what enters a block no more than its type."""
    attrs = () if node.target == "input" else tuple((key, repr(value)) for key, value in node.attrs)
    return node.target, attrs, tuple(value.type for value in node.results)
