"""A cheap bound: only the operations that have most of the weights, on the candidate's own mesh.

Of a mixture of experts nearly all weights are the experts'. Where they are, what brings them there and what sums their
gradients decides which meshes are any good and what fits, so a problem of these operations alone, each free to choose
as if nothing stood beside it, rules out most meshes at a fraction of the work. All else takes and holds at least its
share of what it would on one device, in each way to recompute. The time S of an instance has all that its computing
covers, so S + max(0, H - C) only falls where S and C are lowered by the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autopar.ir.graph import Graph, Node
from autopar.ir.layout import Layout
from autopar.passes.adding_up import Key, Parts, added_ns, parts
from autopar.passes.build import Builder, Encoded, Model
from autopar.passes.candidate import Mode
from autopar.passes.edges import Consumer
from autopar.passes.facts import Fact
from autopar.passes.ground import Ground
from autopar.passes.positions import all_graphs, node_key
from autopar.passes.problem import FORBIDDEN, Chain, Problem, Segment, Table
from autopar.passes.segments import SegmentBuilder
from autopar.passes.solve.eliminate import Eliminator, Prices
from autopar.passes.solve.staged import SAFE
from autopar.passes.values import Values

MODE = 0  # of a segment's variables
DOUBLINGS = 3  # of microbatches, of which one has a problem of all that is not heavy, to bound the others
ROUNDED_BYTES = 64  # so much of an operation's memory may come from rounding numbers of rows
SUMMED = ("sync_ns", "bytes", "transient_bytes", "saved_bytes")


@dataclass(frozen=True, kw_only=True)
class Heavy:
    """Operations of experts that the loss depends on, none where there are no experts; the parameters that nothing but
    these uses, and what may stand in parts at each."""

    operations: frozenset[Key]
    parameters: frozenset[Key]
    parts: Mapping[Key, Parts]


def heavy(model: Model) -> Heavy:
    operations = frozenset(key for key, _, _ in computed(model) if model.rules[key].exchange is not None)
    parameters = []
    for graph in all_graphs(model.graph):
        users = graph.consumers()
        for source in graph.sources("param"):
            keys = [node_key(graph, user) for user in users[source.result.name]]
            if keys and operations.issuperset(keys):
                parameters.append(node_key(graph, source))
    return Heavy(operations=operations, parameters=frozenset(parameters), parts=parts(model, operations))


# What all that is not heavy takes and holds, of one call: by name as in ``SUMMED``, then by way to recompute.
Sums: TypeAlias = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Rest:
    """Of parameters, and of what has as many rows as a microbatch, in so many of these. ``further_ns``: what a further
    one takes, by way to recompute."""

    microbatches: int
    parameters: Sums
    rows: Sums
    further_ns: Mapping[str, int]

    def share(self, name: str, recompute: str, devices: int, least: int, most: int) -> int:
        """Of one of so many devices: time in ``least`` microbatches, memory of ``most``, both multiples of its own."""
        found, rows, smaller = self.parameters[name][recompute], self.rows[name][recompute], most // self.microbatches
        if name == "sync_ns":
            found += (least - self.microbatches) * self.further_ns[recompute]
        elif smaller > 1:
            rows = max(0, rows // smaller - ROUNDED_BYTES)
        return (found + rows) // devices


def rest(model: Model, ground: Ground, microbatches: int, kept: Heavy) -> dict[str, Rest]:
    """That of each graph on one device, whose ``ground`` it is."""
    builder = _Light(model, ground, microbatches, kept)
    builder.build()
    return {
        graph.name: _summed(builder.segments[graph.name], {
            node.result.name for kind in ("param", "buffer", "constant") for node in graph.sources(kind)
        }, microbatches) for graph in all_graphs(model.graph) if graph.name in builder.segments
    }  # fmt: skip


def fastest_ns(model: Model, ground: Ground, kept: Heavy, most_joined: float) -> dict[str, dict[str, int]]:
    """By graph and way to recompute, what all that is not heavy takes at least on the mesh of ``ground``, in one
    microbatch. Raises LimitReachedError where it would take longer to find out."""
    builder = _Light(model, ground, 1, kept)
    builder.build()
    return {
        graph.name: _fastest_ns(builder.segments[graph.name], most_joined) for graph in all_graphs(model.graph)
        if graph.name in builder.segments
    }  # fmt: skip


def build_heavy(
    model: Model, ground: Ground, microbatches: int, kept: Heavy, *, ample: bool = False
) -> Encoded:
    """The problem of heavy operations on the mesh of ``ground``; no plan of it costs less or holds less."""
    return _Heavy(model, ground, microbatches, ample, kept).build()


def anchor(microbatches: int) -> int:
    """Of which number of microbatches the rest bounds that of this one, a multiple of it."""
    twos = (microbatches & -microbatches).bit_length() - 1
    least = int(microbatches == 1 << twos)  # one alone is a case of its own: no gradients are kept
    return microbatches >> max(0, twos - least) % DOUBLINGS


def beside_all(
    made: Encoded, devices: int, beside: Mapping[str, Rest], least: int, most: int,
    fastest: Mapping[str, Mapping[str, int]] | None = None, among: int = 1,
) -> Problem:  # fmt: skip
    """A problem of heavy operations in ``least`` microbatches with all else, whose time and memory are those of one
    device, by graph. ``fastest``: its time on ``among`` devices of one axis, where that is known.

    With the memory of ``most`` microbatches, a multiple, which hold so many times less of each. They take no less time,
    and what is legal in so many is in fewer, so it bounds all multiples of ``least`` that divide ``most``.
    """
    problem, smaller = made.problem, most // least

    def whole(segment: Segment) -> Segment:
        variables, rest = made.variables[segment.name], beside[segment.name]
        modes = [mode.recompute for mode in variables[MODE].values if isinstance(mode, Mode)]
        tables = [
            table if any(variables[v].kind == "source" for v in table.variables) else _lighter(table, smaller)
            for table in segment.tables
        ]  # fmt: skip
        share = {
            name: np.array([rest.share(name, mode, devices, least, most) for mode in modes], dtype=np.int64)
            for name in SUMMED
        }
        if fastest:
            known = [fastest[segment.name][mode] * among // devices for mode in modes]
            share["sync_ns"] = np.maximum(share["sync_ns"], np.array(known, dtype=np.int64))
        tables.append(Table(variables=(MODE,), cover_ns=share["sync_ns"], **share))  # type: ignore[arg-type]
        return replace(segment, tables=tuple(tables))

    chains = (replace(chain, segment=whole(chain.segment)) for chain in problem.chains)
    return replace(problem, root=whole(problem.root), chains=tuple(chains))


def _lighter(table: Table, smaller: int) -> Table:
    """What an operation's rows hold, so many times fewer of them; numbers of rows are rounded."""
    if smaller == 1 or table.bytes is None:
        return table
    held, passing = (
        None if each is None else np.maximum(each // smaller - ROUNDED_BYTES, 0)
        for each in (table.bytes, table.transient_bytes)
    )
    return replace(table, bytes=held, transient_bytes=passing, saved_bytes=held)


def _summed(builder: SegmentBuilder, parameters: set[str], microbatches: int) -> Rest:
    """The least of every table by mode. ``parameters``: their names, and those of others that have no rows."""
    totals = [{name: np.zeros(len(builder.modes), dtype=np.int64) for name in SUMMED} for _ in range(2)]
    further = np.zeros(len(builder.modes))
    for table in builder.segment().tables:
        read = [builder.variables[v] for v in table.variables]
        total = totals[not any(each.kind == "source" and each.name in parameters for each in read)]
        at = table.variables.index(builder.mode) if builder.mode in table.variables else None
        for name, sums in total.items():
            array = getattr(table, name)
            if array is not None:
                sums += array.min(axis=tuple(n for n in range(array.ndim) if n != at))
        further += table.least_further_ns()

    def by_mode(sums: npt.NDArray[Any]) -> dict[str, int]:
        return {mode.recompute: int(n) for mode, n in zip(builder.modes, sums, strict=True)}

    whole, rows = ({name: by_mode(sums) for name, sums in total.items()} for total in totals)
    return Rest(microbatches, whole, rows, by_mode(further))


def _fastest_ns(builder: SegmentBuilder, most_joined: float) -> dict[str, int]:
    """By way to recompute, the least time of a segment but for traffic that may be hidden; 0 where nothing is legal."""
    eliminator = Eliminator(builder.segment(), kept=(MODE,), most_joined=most_joined)
    times = eliminator.run(Prices(time=1.0, hidden=0.0, held=0.0, transient=0.0)).table.tolist()
    ways = list(zip((mode.recompute for mode in builder.modes), times, strict=True))
    least = {way: min(ns for other, ns in ways if other == way) for way, _ in ways}
    return {way: int(ns * SAFE) if ns < FORBIDDEN else 0 for way, ns in least.items()}


def computed(model: Model) -> Iterator[tuple[Key, Graph, Node]]:
    """Operations that the loss depends on, those of blocks all."""
    for graph in all_graphs(model.graph):
        for node in graph.nodes:
            dead = graph is model.graph and node.results[0].name not in model.live
            if not dead and node_key(graph, node) in model.rules:
                yield node_key(graph, node), graph, node


class _Light(Builder):
    """The problem without what heavy operations take and hold, and without their parameters."""

    def __init__(self, model: Model, ground: Ground, microbatches: int, kept: Heavy) -> None:
        super().__init__(model, ground, microbatches, ample=False)
        self.kept = kept

    def _node(self, graph: Graph, into: SegmentBuilder, node: Node, values: Values) -> None:
        tables = len(into.tables)
        super()._node(graph, into, node, values)
        if node_key(graph, node) in self.kept.operations:
            del into.tables[tables:]

    def _parameter(
        self, graph: Graph, into: SegmentBuilder, node: Node, fact: Fact, consumers: list[Consumer], *, root: bool
    ) -> None:
        if node_key(graph, node) not in self.kept.parameters:
            super()._parameter(graph, into, node, fact, consumers, root=root)


class _Heavy(Builder):
    def __init__(self, model: Model, ground: Ground, microbatches: int, ample: bool, kept: Heavy) -> None:
        super().__init__(model, ground, microbatches, ample)
        self.kept = kept

    def build(self) -> Encoded:
        graph = self.model.graph
        main = self._part(graph, root=True)
        problem = Problem(root=main.segment(), chains=tuple(self.chains))
        variables = {name: tuple(builder.variables) for name, builder in self.segments.items()}
        return Encoded(problem=problem, variables=variables, calls=tuple(self.calls))

    def _part(self, graph: Graph, *, root: bool) -> SegmentBuilder:
        into = self._segment(graph, root=root)
        self._edges(graph, into, self._produce(graph, into, {}), root=root)
        return into

    def _produce(self, graph: Graph, into: SegmentBuilder, given: Mapping[str, tuple[Layout, ...]]) -> Values:
        values = Values(graph)
        for node in graph.nodes:
            if graph is self.model.graph and node.results[0].name not in self.model.live:
                continue
            if node.target == "call":
                self._call(graph, into, node, values)
            elif node_key(graph, node) in self.kept.operations:
                self._node(graph, into, node, values)
        return values

    def _node(self, graph: Graph, into: SegmentBuilder, node: Node, values: Values) -> None:
        super()._node(graph, into, node, values)
        legal = [(chosen.operands, chosen.results[0]) for chosen in self.legal(graph, node)]
        least, forward, backward = added_ns(self.pricing, self.kept.parts[node_key(graph, node)], legal)[..., None]
        if not least.any():
            return
        ways, aside = into.ways, self.pricing.aside  # what it covers is not more than what either way may
        into.tables.append(Table(
            variables=(values.variable[node.results[0].name], into.mode),
            sync_ns=np.repeat(self.microbatches * least, len(into.modes), axis=1),
            cover_ns=np.repeat(backward, len(into.modes), axis=1) if aside else None,
            earlier_ns=-backward * ways.befores if aside and self.microbatches > 1 else None,
            ahead_ns=-forward * ways.forwards if aside else None,
        ))  # fmt: skip

    def _call(self, graph: Graph, into: SegmentBuilder, node: Node, values: Values) -> None:
        block = self.model.graph.block(str(node.attr("block")))
        self.chains.append(Chain(
            segment=self._part(block, root=False).segment(), count=int(str(node.attr("count"))), inputs=(),
            outputs=(), root_inputs=(), root_outputs=(),
        ))  # fmt: skip
        self.calls.append(node)

    def _edges(self, graph: Graph, into: SegmentBuilder, values: Values, *, root: bool) -> None:
        for node in graph.sources("param"):
            if node_key(graph, node) in self.kept.parameters:
                name = node.result.name
                fact, consumers = self.model.facts[graph.name, name], values.consumers[name]
                self._parameter(graph, into, node, fact, consumers, root=root)
