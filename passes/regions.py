"""Light operations of a graph that are placed as one.

A norm, a rotation or a router is a dozen operations, each of which goes on as the one before was placed. A region is
one operation, its *root*, with all before it whose results end in the region. It has one variable. Within it a value is
read as it is made, or added up where it is made in parts; all other conversions come before it or behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autopar.ir.graph import ASSIGN, SOURCES, Graph, Node
from autopar.ir.layout import Layout
from autopar.ir.losses import ROW_MAX, STATS
from autopar.ir.optable import ISLAND, row
from autopar.passes.growing import Growing
from autopar.passes.positions import flat_operands, node_key
from autopar.passes.pricing import local_bytes
from autopar.passes.problem import IntArray
from autopar.passes.strategies import Joint, Strategy

if TYPE_CHECKING:
    from autopar.passes.build import Model
    from autopar.passes.ground import Ground

LIGHT = ("pointwise", "reduction", "view")

Legal: TypeAlias = Callable[[Graph, Node], tuple[Strategy, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """``joints``: ways to place its operations, in the graph's order; all arrays are over these.

    ``prices``: as ``Ground.prices``, of all. ``forward_ns``, ``backward_ns``, ``aside_ns``, ``saved``, ``keeps``: of
    values within, as of an ``Edge``. ``operands``: values from outside, the layouts that they are needed in, and
    whether they are kept for backward. ``results``: layouts of each of the root's.
    """

    root: Node
    joints: tuple[Joint, ...]
    prices: IntArray
    forward_ns: IntArray
    backward_ns: IntArray
    saved: IntArray
    keeps: IntArray
    aside_ns: tuple[IntArray, IntArray] | None
    operands: tuple[tuple[str, tuple[Layout, ...], bool], ...]
    results: tuple[tuple[Layout, ...], ...]


def regions(
    model: Model, ground: Ground, graph: Graph, legal: Legal, apart: AbstractSet[str] = frozenset()
) -> Mapping[str, Region]:  # fmt: skip
    """Regions of two operations or more, by the first result of each of these. ``apart``: stay by themselves. Stages
    may be cut at calls, so no region has any on both sides."""
    found: dict[str, Growing] = {}
    users: dict[str, list[str]] = {name: [""] for name in (*graph.outputs, model.loss)}
    behind, calls = dict[str, int](), 0
    for node in graph.nodes:
        calls += node.target == "call"
        behind[node.results[0].name] = calls
    producers = {node.results[0].name: node for node in graph.nodes}
    sizes = {value.name: value.type.numel for node in graph.nodes for value in node.results}
    heavy = {
        value.name for node in graph.nodes for value in node.results
        if node.target not in SOURCES and not is_light(node)
    }  # fmt: skip

    def wanted(node: Node) -> AbstractSet[Layout] | None:
        """Layouts in which what it makes may be read; None: in any."""
        layouts: set[Layout] = set()
        for made in node.results:
            for user in users.get(made.name, ()):
                if user == "" or producers[user].target == "call":
                    return None
                needs = ground.layouts(legal(graph, producers[user]))[0]
                read = zip(flat_operands(producers[user]), needs, strict=True)
                layouts.update(*(at for name, at in read if name == made.name))
        return layouts

    for node in reversed(graph.nodes):
        name = node.results[0].name
        if name not in apart and is_light(node):
            readers = [found.get(user) for value in node.results for user in users.get(value.name, ())]
            into = readers[0] if len(set(map(id, readers))) == 1 else None
            if into is not None and behind[into.members[0].results[0].name] != behind[name]:
                into = None
            chosen = legal(graph, node)
            if into is None or not into.take(node, chosen, fed=not heavy.isdisjoint(node.uses())):
                into = Growing(node, chosen, sizes, wanted(node))
            if into.whole:
                found[name] = into
        for operand in node.uses():
            users.setdefault(operand, []).append(name)
    several = {id(one): one for one in found.values() if len(one.members) > 1}
    made = {at: _region(model, ground, graph, one) for at, one in several.items()}
    return {name: made[id(one)] for name, one in found.items() if id(one) in made}


def is_light(node: Node) -> bool:
    """Whether a node may stand in a region."""
    if node.target in (*SOURCES, "call", ASSIGN, ROW_MAX) or node.target in STATS:
        return False
    entry = row(node)
    return entry is not ISLAND and entry.op_class in LIGHT and not (entry.exchanged or entry.inner)


def _region(model: Model, ground: Ground, graph: Graph, grown: Growing) -> Region:
    nodes, legal = grown.members[::-1], grown.legal[::-1]
    numbers = np.array([way.numbers[::-1] for way in grown.ways], dtype=np.int64).T
    prices = np.sum([
        ground.prices(graph, node, each)[:, at] for node, each, at in zip(nodes, legal, numbers, strict=True)
    ], axis=0)  # fmt: skip
    names = tuple(node.results[0].name for node in nodes)
    joints = tuple(
        Joint(names, tuple(each[n] for each, n in zip(legal, column, strict=True))) for column in numbers.T
    )
    read: dict[str, list[Layout | None]] = {}
    kept: dict[str, bool] = {}
    for at, node in enumerate(nodes):
        keeps = ground.keeps[node_key(graph, node)].operands
        for index, name in enumerate(flat_operands(node)):
            if name is not None:
                read[name] = [joint.strategies[at].operands[index] for joint in joints]
                kept[name] = kept.get(name, False) or keeps[index]
    costs, saved, held = _within(model, ground, graph, nodes, joints, read, kept)
    forward, backward, *aside = costs
    made = {value.name for node in nodes for value in node.results}
    return Region(
        root=nodes[-1], joints=joints, prices=prices, forward_ns=forward, backward_ns=backward, saved=saved, keeps=held,
        aside_ns=(aside[0], aside[1]) if aside and costs.any() else None,
        operands=tuple(
            (name, tuple(layout for layout in needs if layout is not None), kept[name])
            for name, needs in read.items() if name not in made
        ),
        results=tuple(zip(*(joint.strategies[-1].results for joint in joints), strict=True)),
    )  # fmt: skip


def _within(
    model: Model, ground: Ground, graph: Graph, nodes: list[Node], joints: tuple[Joint, ...],
    read: Mapping[str, list[Layout | None]], kept: Mapping[str, bool],
) -> tuple[IntArray, IntArray, IntArray]:  # fmt: skip
    """Of values on their way within a region: prices [number, joint], bytes saved, bytes selective recomputation
    keeps."""
    conversions = ground.edges.conversions
    costs = np.zeros((conversions.numbers, len(joints)), dtype=np.int64)
    saved, held = np.zeros((2, len(joints)), dtype=np.int64)
    for at, node in enumerate(nodes):
        free = ground.keeps[node_key(graph, node)].result
        for index, value in enumerate(node.results):
            fact = model.facts[graph.name, value.name]
            for n, need in enumerate(read.get(value.name, ())):
                have = joints[n].strategies[at].results[index]
                if need is not None and have != need:
                    costs[:, n] += conversions.cost_ns(fact, have, need)
                    held[n] += conversions.keeping.bytes(fact, [have], [(need,)], expensive=False)[0, 0]
                if need is not None and kept[value.name] and not (free and have == need):
                    saved[n] += local_bytes(need, fact.type)
    return costs, saved, held
