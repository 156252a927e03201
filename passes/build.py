"""Folded graph + mesh + prices → ``Problem``, and how to read its solution.

Every operation, or region of light ones, is a variable over its strategies, every parameter one over its storages,
every value with several consumers a hub; a block is a segment whose carried and shared values are variables shared
with the main graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.ir.calls import carried, returned
from autopar.ir.graph import ASSIGN, SOURCES, Graph, Node, assigned
from autopar.ir.layout import Layout, stacked
from autopar.ir.losses import ROW_MAX, STATS
from autopar.ir.mesh import Mesh
from autopar.ir.optable import row
from autopar.ir.program import MICROBATCH_AXIS
from autopar.ir.rules import NodeRule
from autopar.ir.types import TensorType
from autopar.passes.borders import handed_on, needed_layouts, out_layouts
from autopar.passes.candidate import Settings, StoredParameter
from autopar.passes.early_costs import EarlyCosts
from autopar.passes.edges import Consumer
from autopar.passes.facts import Fact
from autopar.passes.ground import Ground
from autopar.passes.legal import legal_strategies
from autopar.passes.likeness import used_alike
from autopar.passes.microbatches import refuse_crossing, refuse_writes
from autopar.passes.positions import BATCH_AXES, Positions, all_graphs, flat_operands, node_key
from autopar.passes.pricing import Pricing, local_bytes
from autopar.passes.problem import Chain, Problem
from autopar.passes.regions import Region, regions
from autopar.passes.segments import SegmentBuilder, Variable
from autopar.passes.stages import belongs, dependence
from autopar.passes.storage import storages
from autopar.passes.strategies import NodeShapes, Strategy
from autopar.passes.timeless import marks
from autopar.passes.upkeep import upkeep
from autopar.passes.values import Values


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is known of the folded graph before any mesh: shared by all candidates.

    ``parameters``: parameters, buffers and constants by name. ``loss``: the value that training computes;
    what it does not depend on (``live``: first results of the main nodes that it does) costs nothing.
    """

    graph: Graph
    rules: Mapping[tuple[str, str], NodeRule]
    facts: Mapping[tuple[str, str], Fact]
    shapes: Mapping[tuple[str, str], NodeShapes]
    parameters: Mapping[str, StoredParameter]
    settings: Settings
    loss: str
    live: frozenset[str]

    @cached_property
    def pure(self) -> frozenset[str]:
        """Values of the main graph that depend on no parameter, but for the loss."""
        own = {name for (graph, name), fact in self.facts.items() if graph == self.graph.name and fact.pure}
        return frozenset(own - {self.loss})

    @cached_property
    def used(self) -> frozenset[str]:
        """Values of the main graph that the loss depends on."""
        live = (node for node in self.graph.nodes if node.results[0].name in self.live)
        return frozenset({self.loss, *(name for node in live for name in node.uses())})

    @cached_property
    def written(self) -> frozenset[tuple[str, str]]:
        """Buffers that the graph changes: (graph, name)."""
        return frozenset(
            (part.name, buffer) for part in all_graphs(self.graph) for node in part.nodes if node.target == ASSIGN
            for buffer, _ in assigned(node)
        )  # fmt: skip

    def types(self, graph: Graph, node: Node) -> tuple[TensorType | None, ...]:
        """Of a node's flattened operands (None: absent) and its results."""
        operands = (None if name is None else self.facts[graph.name, name].type for name in flat_operands(node))
        return (*operands, *(value.type for value in node.results))

    def stored(self, graph: Graph, node: Node) -> StoredParameter:
        """The parameter behind a source node; inside a block that of the first call."""
        slot = node.attr("slot")
        if not isinstance(slot, int):
            return self.parameters[str(node.attr("fqn"))]
        call = next(n for n in self.graph.nodes if n.target == "call" and n.attr("block") == graph.name)
        params = call.attr("params")
        assert isinstance(params, tuple) and isinstance(params[0], tuple)
        return self.parameters[str(params[0][slot])]


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A problem and the meaning of its variables. ``calls``: the call node of each chain, in order."""

    problem: Problem
    variables: Mapping[str, tuple[Variable, ...]]
    calls: tuple[Node, ...]


def build(
    model: Model, found: Positions, pricing: Pricing, microbatches: int, *, ample: bool = False,
    ground: Ground | None = None,
) -> Encoded:  # fmt: skip
    """The problem of placing ``model`` on ``pricing.mesh``.

    ``ample``: its fastest solution is asked for, whatever its memory, so that choices which only save memory may be
    left out. ``ground``: of the same mesh, to be built on. Raises UnsupportedError naming the node if more than one
    microbatch is impossible.
    """
    return Builder(model, ground or Ground(model, found, pricing), microbatches, ample).build()


class Builder:
    def __init__(self, model: Model, ground: Ground, microbatches: int, ample: bool) -> None:
        self.model, self.pricing, self.microbatches = model, ground.pricing, microbatches
        self.ample = ample
        self.mesh: Mesh = ground.pricing.mesh
        self.ground, self.edges = ground, ground.edges
        self.segments: dict[str, SegmentBuilder] = {}
        # of weights that calls share: which follow which, by block, and in the root the use of each
        self.first: dict[str, dict[str, str]] = {}
        self.used: dict[tuple[str, tuple[Layout, ...]], int] = {}
        self.chains: list[Chain] = []
        self.calls: list[Node] = []

    def build(self) -> Encoded:
        graph = self.model.graph
        if MICROBATCH_AXIS in self.mesh.names:
            refuse_writes(graph, self.microbatches)
        main = self._segment(graph, root=True)
        have = self._produce(graph, main, {})
        whole = Layout.replicated(self.mesh)
        out = main.variable("out", self.model.loss, [whole])
        have.consumers[self.model.loss].append(Consumer(out, (whole,)))
        if MICROBATCH_AXIS in self.mesh.names:
            EarlyCosts(model=self.model, ground=self.ground, into=main, values=have).add()
        self._edges(graph, main, have, root=True)
        problem = Problem(root=main.segment(), chains=tuple(self.chains))
        variables = {name: tuple(builder.variables) for name, builder in self.segments.items()}
        return Encoded(problem=problem, variables=variables, calls=tuple(self.calls))

    def _segment(self, graph: Graph, *, root: bool) -> SegmentBuilder:
        settings = self.model.settings
        many, inside = self.microbatches, self.pricing.inside
        modes = settings.modes(self.mesh, block=not root, microbatches=many, ample=self.ample, inside=inside)
        builder = SegmentBuilder(graph.name, modes, self.microbatches, self.edges, settings.schedule is not None)
        self.segments[graph.name] = builder
        return builder

    def _produce(self, graph: Graph, into: SegmentBuilder, given: Mapping[str, tuple[Layout, ...]]) -> Values:
        """Variables of all nodes. ``given``: layouts in which a block's inputs may come."""
        values, placed, first = Values(graph), self.regions(graph), self.first.get(graph.name, {})
        for node in graph.nodes:
            region = placed.get(node.results[0].name)
            if graph is self.model.graph and node.target != "input" and node.results[0].name not in self.model.live:
                continue
            if node.target == "call":
                self._call(graph, into, node, values)
            elif node.target == "input":
                name = node.result.name
                layouts = given.get(name) or (self._input_layout(node),)
                kind = "shared" if name in given else "source"
                if first.get(name, name) == name:
                    like = tuple(other for other, one in first.items() if one == name != other)
                    values.set(name, into.variable(kind, name, layouts, like), layouts)
                else:
                    values.set(name, values.variable[first[name]], layouts)
            elif region is not None and region.root is node:
                self._region(graph, into, region, values)
            elif region is None and node.target not in SOURCES:
                self._node(graph, into, node, values)
        return values

    def regions(self, graph: Graph) -> Mapping[str, Region]:
        """Of operations that stand in one stage, if the main graph's, and that the loss depends on."""
        known, apart = self.ground.regions, set[str]()
        if graph.name not in known:
            if graph is self.model.graph:
                depends = dependence(graph.nodes)
                apart = {node.results[0].name for node in graph.nodes if not belongs(node, depends)}
                apart |= {node.results[0].name for node in graph.nodes} - self.model.live
            known[graph.name] = regions(self.model, self.ground, graph, self.legal, apart)
        return known[graph.name]

    def _region(self, graph: Graph, into: SegmentBuilder, region: Region, values: Values) -> None:
        variable = into.variable("node", region.root.results[0].name, region.joints)
        into.region(variable, region)
        keeps = self.ground.keeps[node_key(graph, region.root)]
        for value, layouts in zip(region.root.results, region.results, strict=True):
            values.set(value.name, variable, layouts, saved=keeps.result)
        for name, needs, saves in region.operands:
            values.consumers[name].append(Consumer(variable, needs, saves))

    def _input_layout(self, node: Node) -> Layout:
        """All batch inputs share one layout: the batch over every axis that may split it and fits."""
        batch, _ = self.model.settings.inputs[str(node.attr("name"))]
        shape = node.result.type.shape
        axes = []
        rest = shape[batch] if batch is not None else 1
        for axis, size in self.mesh.axes:
            if axis in BATCH_AXES and rest % size == 0:
                axes.append(axis)
                rest //= size
        owned = [(axis, batch, 1) for axis in axes] if batch is not None else []
        return Layout.of(self.mesh, stacked(self.mesh, owned))

    def _node(self, graph: Graph, into: SegmentBuilder, node: Node, values: Values) -> None:
        key = node_key(graph, node)
        keeps, legal = self.ground.keeps[key], self.legal(graph, node)
        variable = into.variable("node", node.results[0].name, legal)
        needs, results = self.ground.layouts(legal)
        for value, layouts in zip(node.results, results, strict=True):
            values.set(value.name, variable, layouts, saved=keeps.result)
        for index, name in enumerate(flat_operands(node)):
            if name is not None:
                values.consumers[name].append(Consumer(variable, needs[index], keeps.operands[index]))
        if graph is self.model.graph and MICROBATCH_AXIS in self.mesh.names and key[1] in self.model.pure:
            return  # which may run once for all microbatches (``EarlyCosts``)
        prices = self.ground.prices(graph, node, legal)
        if prices.any():  # a view's are nothing
            into.node(variable, *prices, expensive=keeps.expensive)

    def _call(self, graph: Graph, into: SegmentBuilder, node: Node, values: Values) -> None:
        block = self.model.graph.block(str(node.attr("block")))
        handed = carried(node)
        operands = flat_operands(node)
        inputs = [source.result.name for source in block.sources("input")]
        inner = self._segment(block, root=False)
        # what may come out of the block does not depend on what comes in: its nodes come first
        given = handed_on(self, block, [values.layouts.get(str(name), ()) for name in operands[:handed]])
        needs, producers = needed_layouts(self, block), self.model.graph.producers()
        shared = {name: needs[name] for name in inputs[handed:]}
        given.update(shared)
        outer = dict(zip(inputs, operands, strict=True))
        weights = [name for name in shared if producers[str(outer[name])].target in SOURCES[1:]]
        self.first[block.name] = used_alike(block, shared, weights)
        have = self._produce(block, inner, given)
        outs = []
        for index, name in enumerate(block.outputs[:handed]):
            layouts = given[inputs[index]]
            out = inner.variable("carried", name, layouts)
            inner.equal(have.variable[name], have.layouts[name], out, layouts)
            outs.append(out)
        self._edges(block, inner, have, root=False)
        self._saved_inputs(block, inner, have, inputs[:handed])
        beside = self._collected(into, node, values, inner, have, handed)
        self._link(into, node, values, given, inputs, have, outs, beside)

    def _collected(
        self, into: SegmentBuilder, node: Node, values: Values, inner: SegmentBuilder, have: Values, handed: int
    ) -> list[tuple[int, int]]:  # fmt: skip
        """Variables, of the block and of ``into``, of what is collected and used: in one layout of all calls."""
        block, known = self.model.graph.block(str(node.attr("block"))), dict[str, tuple[int, tuple[Layout, ...]]]()
        pairs: list[tuple[int, int]] = []
        for _, value, name in itertools.islice(returned(node, block), handed, None):
            if value.name not in self.model.used:
                continue
            if name not in known:
                (layouts,) = out_layouts(self, block, (name,))
                own, root = inner.variable("carried", name, layouts), into.variable("carried", value.name, layouts)
                inner.equal(have.variable[name], have.layouts[name], own, layouts)
                known[name] = root, layouts
                pairs.append((own, root))
            values.set(value.name, *known[name])
        return pairs

    def _link(
        self, into: SegmentBuilder, node: Node, values: Values, given: Mapping[str, tuple[Layout, ...]],
        inputs: list[str], have: Values, outs: list[int], beside: list[tuple[int, int]],
    ) -> None:  # fmt: skip
        block, handed = str(node.attr("block")), len(outs)
        first, roots = self.first[block], dict[str, int]()
        for index, (inner, name) in enumerate(zip(inputs, flat_operands(node), strict=True)):
            assert name is not None
            layouts, one = given[inner], first.get(inner, inner)
            if one not in roots:
                known = self.used.get((name, layouts)) if inner in first else None
                kind = "carried" if index < handed else "shared"
                roots[one] = into.variable(kind, name, layouts) if known is None else known
            if inner in first:  # as all calls of a chain use a weight, so do those of the next
                self.used[name, layouts] = roots[one]
            consumer = Consumer(roots[one], layouts, saves=self._saved_in(block, inner))
            made = values.layouts.get(name, ())
            # a parameter is stored, and converted to what is chosen, and a sum comes to be in parts
            if index < handed and made and {*made} <= {*layouts}:
                into.equal(values.variable[name], made, roots[one], layouts)
            elif consumer not in values.consumers[name]:
                values.consumers[name].append(consumer)
        ends = []
        for index, value in enumerate(node.results[:handed]):
            layouts = given[inputs[index]]
            end = into.variable("carried", value.name, layouts)
            ends.append(end)
            values.set(value.name, end, layouts)
        self.chains.append(Chain(
            segment=self.segments[block].segment(), count=int(str(node.attr("count"))),
            inputs=tuple(have.variable[name] for name in inputs[:handed]), outputs=tuple(outs),
            root_inputs=tuple(roots[name] for name in inputs[:handed]), root_outputs=tuple(ends),
            shared=(*(have.variable[name] for name in inputs[handed:] if name in roots), *(own for own, _ in beside)),
            root_shared=(*(roots[name] for name in inputs[handed:] if name in roots), *(root for _, root in beside)),
        ))  # fmt: skip
        self.calls.append(node)

    def legal(self, graph: Graph, node: Node) -> tuple[Strategy, ...]:
        return legal_strategies(self.model, self.ground, graph, node, self.microbatches)

    def _saved_in(self, block: str, value: str) -> bool:
        """Whether some node of the block keeps the value for its backward pass."""
        for node in self.model.graph.block(block).nodes:
            for index, name in enumerate(flat_operands(node)):
                grads = self.model.shapes[block, node.results[0].name].grads
                if name == value and row(node).keeps_operand(index, grads):
                    return True
        return False

    def _saved_inputs(self, block: Graph, inner: SegmentBuilder, have: Values, carried: Sequence[str]) -> None:
        """A recomputed call keeps what came in. In backward one gradient of it comes and one goes."""
        for name in carried:
            fact = self.model.facts[block.name, name]
            sizes = np.array([local_bytes(layout, fact.type) for layout in have.layouts[name]], dtype=np.int64)
            held = np.where(inner.ways.dropped, sizes[:, None], 0)
            passing = np.repeat(2 * sizes[:, None], len(inner.modes), axis=1) if fact.grad else None
            inner.tables.append(inner.memory((have.variable[name], inner.mode), held, passing))

    def _edges(self, graph: Graph, into: SegmentBuilder, values: Values, *, root: bool) -> None:
        producers = graph.producers()
        for node in graph.nodes:
            keeps = self.ground.keeps.get(node_key(graph, node))
            for value in node.results:
                consumers = values.consumers[value.name]
                fact = self.model.facts[graph.name, value.name]
                if node.target in ("param", "buffer", "constant"):
                    if consumers:
                        self._parameter(graph, into, node, fact, consumers, root=root)
                elif consumers:
                    shared = into.variables[values.variable[value.name]].kind == "shared"
                    have = values.layouts[value.name]
                    free = [shared or value.name in values.saved] * len(have)
                    # all but inputs stands in time as what uses it, unless it never does (``EarlyCosts``)
                    crosses = root and (node.target == "input" or value.name == self.model.loss)
                    if MICROBATCH_AXIS in self.mesh.names and not crosses:
                        for consumer in consumers:
                            user = producers.get(into.variables[consumer.variable].name, node)
                            refuse_crossing(have, consumer.needs, user, self.microbatches)
                    into.edge(
                        value.name, fact, values.variable[value.name], have, consumers, free=free,
                        expensive=keeps is not None and keeps.expensive, crosses_time=crosses,
                    )  # fmt: skip
                    for consumer in consumers if node.target in STATS else ():
                        into.joined(values.variable[value.name], have, consumer.variable, consumer.needs)
                    for consumer in consumers if node.target == ROW_MAX else ():
                        into.same_logits(values.variable[value.name], consumer.variable)

    def _parameter(
        self,
        graph: Graph,
        into: SegmentBuilder,
        node: Node,
        fact: Fact,
        consumers: list[Consumer],
        *,
        root: bool,
    ) -> None:
        name = node.result.name
        stored = self.model.stored(graph, node)
        demands = [layout for consumer in consumers for layout in consumer.needs]
        layouts = storages(demands, fact.type.shape)
        if (graph.name, name) in self.model.written:
            layouts = (Layout.replicated(self.mesh),)  # what is written is what is stored
        groups, settings, known = into.edges.groups(consumers), self.model.settings, self.ground.timeless.upkeep
        how = settings.zero, settings.schedule, settings.hybrid, settings.pooled
        among, count = self.ground.trained(graph), self.microbatches if self.ample else min(self.microbatches, 2)
        key = (
            fact, stored, marks(layouts), into.edges.marks(groups), into.modes, root, among, how, self.ample, count
        )  # fmt: skip
        if key not in known:
            known[key] = upkeep(
                fact, stored, layouts, groups, into.modes, pricing=self.pricing, settings=settings,
                microbatches=self.microbatches, root=root, among=among, together=self.ground.together(stored.shape),
                ample=self.ample,
            )  # fmt: skip
        into.parameter(
            name, fact, layouts, consumers, known[key], trainable=stored.trainable and not stored.buffer
        )
