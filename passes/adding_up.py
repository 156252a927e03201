"""What it takes at least to add up what heavy operations leave in parts: results, and gradients of what they read.

A result that is Partial is passed on by linear operations alone. What is not linear needs all of it, so between one
heavy operation and the next it is added up, maybe where the value is smaller. Gradients of what an operation reads are
added up where they come out. Each is one collective over the axis, of no less than the share all other axes leave:

    P → R:  all_reduce, nothing             R → R*:  nothing, all_reduce
    P → S:  reduce_scatter, all_gather      S → R*:  all_gather, reduce_scatter
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from autopar.cost_model.dtypes import sent_back_bytes
from autopar.ir.calls import carried
from autopar.ir.graph import Graph, Node
from autopar.ir.layout import RSTAR, Layout, P
from autopar.ir.types import DTYPE_BYTES
from autopar.passes.build import Model
from autopar.passes.facts import Fact
from autopar.passes.positions import all_graphs, flat_operands, node_key
from autopar.passes.pricing import Pricing
from autopar.passes.problem import IntArray
from autopar.passes.stages import live_for

Key: TypeAlias = tuple[str, str]
Way: TypeAlias = tuple[int, int]  # ns forward and backward


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What may stand in parts at one operation. ``passed``: its result and what may be Partial because of it, of which
    one is added up in ``added`` of so many ``calls``; ``read``: by operand, flattened, what has a gradient that is
    added up for this operation alone."""

    passed: tuple[Fact, ...]
    added: int
    calls: int
    read: Mapping[int, Fact]


def parts(model: Model, operations: frozenset[Key]) -> dict[Key, Parts]:
    """Those of each heavy operation.

    No addition counts twice: where a graph has several operations one may do for the results of all, so only the first
    is asked; and so it is where several read one value.
    """
    found: dict[Key, Parts] = {}
    for graph in all_graphs(model.graph):
        calls = [n for n in model.graph.nodes if n.target == "call" and n.attr("block") == graph.name]
        count, first = min((int(str(call.attr("count"))) for call in calls), default=1), True
        handed = carried(calls[0]) if calls else 0
        inputs = [source.result.name for source in graph.sources("input")]
        known = set(inputs[handed:] if calls else ())  # one and the same in all calls
        for node in graph.nodes:
            if (key := node_key(graph, node)) not in operations:
                continue
            read = {}
            for index, name in enumerate(flat_operands(node)):
                if name is not None and name not in known and not model.facts[graph.name, name].parameter:
                    read[index] = model.facts[graph.name, name]
                    known.add(name)
            passed, added = _passed(model, graph, node, inputs[:handed], count) if first else ([], 0)
            facts = tuple(model.facts[graph.name, name] for name in passed)
            found[key], first = Parts(passed=facts, added=added, calls=count, read=read), False
    return found


def _passed(model: Model, graph: Graph, node: Node, handed: Sequence[str], count: int) -> tuple[list[str], int]:
    """A result with all that may be Partial because it is, and in how many of ``count`` calls it is added up before
    the operation's next call: in all, if its graph needs all of it; or where the next call does, to come there.
    ``handed``: the carried inputs."""
    here, needed = _linear(model, graph, [value.name for value in node.results], graph.nodes)
    if needed or graph is model.graph:
        return here, count if needed else 0
    given = [entering for entering, output in zip(handed, graph.outputs, strict=False) if output in here]
    there, needed = _linear(model, graph, given, live_for(graph, node.results[0].name).nodes)
    return [*here, *there], count - 1 if needed else 0


def _linear(model: Model, graph: Graph, names: Sequence[str], nodes: Sequence[Node]) -> tuple[list[str], bool]:
    """The values and what may be Partial because they are, and whether one of ``nodes`` needs all of one."""
    found, needed = dict.fromkeys(names), False
    for node in nodes:
        at = {index for index, operand in enumerate(flat_operands(node)) if operand in found}
        if not at or node.target == "call" or (graph is model.graph and node.results[0].name not in model.live):
            continue
        linear = {index for members in model.rules[node_key(graph, node)].partial for index in members}
        if at & linear:
            found.update((value.name, None) for value in node.results)
        needed = needed or not at <= linear
    return [*found], needed


def added_ns(pricing: Pricing, own: Parts, legal: Sequence[tuple[Sequence[Layout | None], Layout]]) -> IntArray:
    """[3, strategy] of one microbatch: the least that adding up takes, and the most of that forward, and backward.

    ``legal``: operands, flattened, and first result of each strategy.
    """
    found = np.zeros((3, len(legal)), dtype=np.int64)
    for axis in pricing.mesh.names:
        made = np.array([result[axis] == P for _, result in legal])
        if own.added and made.any():
            ways = [way for fact in own.passed for way in _results(pricing, fact, axis)]
            found[:, made] += _least(ways) * own.added // own.calls
        for index, fact in own.read.items():
            read = np.array([(at := operands[index]) is not None and at[axis] == RSTAR for operands, _ in legal])
            if read.any():
                found[:, read] += _least(_gradients(pricing, fact, axis))
    return found


def _least(ways: Sequence[Way]) -> IntArray:
    """[3, 1]"""
    sums, forward, backward = min(map(sum, ways)), max(way[0] for way in ways), max(way[1] for way in ways)
    return np.array([[sums], [forward], [backward]], dtype=np.int64)


def _results(pricing: Pricing, fact: Fact, axis: str) -> list[Way]:
    """Ways to add up a value."""
    gathered = _sent_ns(pricing, fact, "all_gather", axis, back=True) if fact.grad else 0
    return [
        (_sent_ns(pricing, fact, "all_reduce", axis), 0), (_sent_ns(pricing, fact, "reduce_scatter", axis), gathered)
    ]


def _gradients(pricing: Pricing, fact: Fact, axis: str) -> list[Way]:
    """Ways to add up its gradient."""
    return [
        (0, _sent_ns(pricing, fact, "all_reduce", axis, back=True)),
        (_sent_ns(pricing, fact, "all_gather", axis), _sent_ns(pricing, fact, "reduce_scatter", axis, back=True)),
    ]


def _sent_ns(pricing: Pricing, fact: Fact, kind: str, axis: str, *, back: bool = False) -> int:
    """Of what a device has before it, if all other axes split the value, and this one what is gathered."""
    mesh, dtype = pricing.mesh, fact.type.dtype
    devices = math.prod(size for name, size in mesh.axes if name != axis or kind == "all_gather")
    each = sent_back_bytes(dtype, kind, parameter=False) if back else DTYPE_BYTES[dtype]
    return pricing.collective_ns(kind, fact.type.numel // devices * each, axis)
