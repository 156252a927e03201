"""A cheap bound: only the operations that have most of the weights, on the candidate's own mesh.

Of a mixture of experts nearly all weights are the experts'. Where they are, what brings them there and what sums their
gradients decides which meshes are any good and what fits, so a problem of these operations alone, each free to choose
as if nothing stood beside it, rules out most meshes at a fraction of the work. All else takes and holds at least its
share of what it would on one device, in each way to recompute. The time S of an instance has all that its computing
covers, so S + max(0, H - C) only falls where S and C are lowered by the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from autopar.ir.graph import Graph, Node
from autopar.ir.layout import Layout
from autopar.passes.adding_up import Key, Parts, added_ns, parts
from autopar.passes.build import Builder, Encoded, Model
from autopar.passes.candidate import Mode
from autopar.passes.edges import Consumer
from autopar.passes.facts import Fact
from autopar.passes.ground import Ground
from autopar.passes.positions import all_graphs, node_key
from autopar.passes.problem import Chain, Problem, Segment, Table
from autopar.passes.segments import SegmentBuilder
from autopar.passes.values import Values

MODE = 0  # of a segment's variables
ROUNDED_BYTES = 64  # so much of an operation's memory may come from rounding numbers of rows
TIMES, HOLDS = ("sync_ns",), ("bytes", "transient_bytes", "saved_bytes")  # of ``Rest``


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


@dataclass(frozen=True)
class Rest:
    """What all that is not heavy takes and holds, by way to recompute: ns and bytes, of one call of a graph."""

    sync_ns: Mapping[str, int]
    bytes: Mapping[str, int]
    transient_bytes: Mapping[str, int]
    saved_bytes: Mapping[str, int]


def rest(model: Model, ground: Ground, microbatches: int, kept: Heavy) -> dict[str, Rest]:
    """That of each graph on one device, whose ``ground`` it is."""
    builder = _Light(model, ground, microbatches, kept)
    builder.build()
    return {name: _summed(segment) for name, segment in builder.segments.items()}


def build_heavy(
    model: Model, ground: Ground, microbatches: int, kept: Heavy, *, ample: bool = False
) -> Encoded:
    """The problem of heavy operations on the mesh of ``ground``; no plan of it costs less or holds less."""
    return _Heavy(model, ground, microbatches, ample, kept).build()


def beside_all(
    made: Encoded, devices: int, times: Mapping[str, Rest], holds: Mapping[str, Rest], smaller: int = 1
) -> Problem:
    """A problem of heavy operations with all else, whose ``times`` and memory are those of one device, by graph.

    ``smaller``: with the memory of so many times as many microbatches, which hold so many times less of each. They
    take no less time, and what is legal in so many is in fewer, so it bounds all multiples of the problem's own number
    that divide theirs.
    """
    problem = made.problem

    def whole(segment: Segment) -> Segment:
        variables = made.variables[segment.name]
        modes = variables[MODE].values
        tables = [
            table if any(variables[v].kind == "source" for v in table.variables) else _lighter(table, smaller)
            for table in segment.tables
        ]  # fmt: skip
        share = {
            field.name: np.array([
                getattr(rest[segment.name], field.name)[mode.recompute] // devices
                for mode in modes if isinstance(mode, Mode)
            ], dtype=np.int64) for rest, names in ((times, TIMES), (holds, HOLDS)) for field in fields(Rest)
            if field.name in names
        }  # fmt: skip
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


def _summed(segment: SegmentBuilder) -> Rest:
    """The least of every table by mode."""
    total = {name: np.zeros(len(segment.modes), dtype=np.int64) for name in (field.name for field in fields(Rest))}
    for table in segment.segment().tables:
        for name, sums in total.items():
            array = getattr(table, name)
            if array is not None:
                at = table.variables.index(segment.mode) if segment.mode in table.variables else None
                others = tuple(n for n in range(array.ndim) if n != at)
                sums += array.min(axis=others)
    return Rest(**{
        name: {mode.recompute: int(n) for mode, n in zip(segment.modes, sums, strict=True)}
        for name, sums in total.items()
    })  # fmt: skip


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
        legal = [(chosen.operands, chosen.results[0]) for chosen in self._legal(graph, node)]
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
