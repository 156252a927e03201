"""A plan's choices on a smaller model and a smaller mesh, so that they can be tried on a laptop.

The smaller model has the same operations in the same order; sizes differ, blocks repeat less often, and in
another precision it casts at other places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autopar.ir.calls import returned
from autopar.ir.errors import MismatchError
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.layout import Layout, Placement, R, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS
from autopar.ir.plan import Plan
from autopar.ir.plan import Variant as PlanVariant
from autopar.passes.assignment import Assignment, Variant
from autopar.passes.build import Model
from autopar.passes.candidate import Mode, reduces_gradients, with_time
from autopar.passes.conversions import Conversions
from autopar.passes.partials import partial_axes
from autopar.passes.positions import Positions, all_graphs, flat_operands, node_key, positions
from autopar.passes.strategies import NOTHING, Choice, Strategy, parse_choices, strategies, strategy

_CASTS = ("aten.to.dtype",)
# Names in the planned graph by (graph, name in the smaller model's graph).
Names = Mapping[tuple[str, str], str]


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """``placed`` of ``total`` operations, casts left out, stand as in the plan; the others follow their operands."""

    assignment: Assignment
    placed: int
    total: int


def transfer(plan: Plan, model: Model, planned: Graph, conversions: Conversions) -> Transferred:
    """The plan's assignment for ``model`` on the mesh of ``conversions``, which has the plan's axes.

    ``planned`` is the folded graph in the precision of the plan: nodes in it have the plan's names.
    Raises MismatchError where the model has other blocks than the plan.
    """
    return _Transfer(plan, model, conversions, aligned(planned, model.graph)).run()


def aligned(planned: Graph, graph: Graph) -> Names:
    """Names of ``planned`` for the values of ``graph``: the two differ in casts only, or stop being aligned there."""
    names: dict[tuple[str, str], str] = {}
    for theirs, ours in zip(all_graphs(planned), all_graphs(graph), strict=False):
        pairs = zip(_without_casts(theirs), _without_casts(ours), strict=False)
        for their, our in itertools.takewhile(lambda pair: pair[0].target == pair[1].target, pairs):
            names[ours.name, our.results[0].name] = their.results[0].name
    return names


def _without_casts(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.target not in _CASTS]


def smaller(layout: Layout, mesh: Mesh) -> Layout:
    """The layout on a mesh with the same axes of other sizes: factors keep their order in every dim."""
    placements: dict[str, Placement] = {}
    for axis, size in mesh.axes:
        place = layout[axis]
        if isinstance(place, Shard) and size > 1:
            ahead = [(name, extent) for at, extent, name in layout.owners(place.dim) if at < place.outer]
            before = math.prod(extent for _, extent in ahead)
            after = math.prod(mesh.size(name) for name, _ in ahead)
            place = Shard(place.dim, place.outer // before * after)
        placements[axis] = R if size == 1 else place
    return Layout.of(mesh, placements)


@dataclass(eq=False)
class _Transfer:
    plan: Plan
    model: Model
    conversions: Conversions
    names: Names
    placed: int = 0
    total: int = 0
    planned: Mesh = field(init=False)
    found: Positions = field(init=False)

    def run(self) -> Transferred:
        plan, model = self.plan, self.model
        self.mesh = self.conversions.pricing.mesh
        axes = tuple((axis, plan.mesh[axis]) for axis in plan.axes if axis != PIPELINE_AXIS)
        self.planned = with_time(Mesh(axes), plan.num_microbatches)
        self.found = positions(model.graph, model.rules, model.settings.inputs)
        self.partial = partial_axes(model.graph, model.rules, self.found, self.mesh)
        graphs = {graph.name: graph for graph in all_graphs(model.graph)}
        made: dict[int, Variant] = {}
        for index, variant in enumerate(plan.assignment.variants):
            if index != plan.assignment.main and variant.graph in graphs:
                made[index] = self._variant(variant, graphs[variant.graph], {})
        calls = {
            node.results[0].name: tuple((n, made[i]) for n, i in self._runs(node, made))
            for node in model.graph.nodes if node.target == "call"
        }  # fmt: skip
        results = {name: runs[-1][1] for name, runs in calls.items()}
        main = self._variant(plan.assignment.variants[plan.assignment.main], model.graph, results)
        found = Assignment(mesh=self.mesh, main=main, calls=calls)
        return Transferred(assignment=found, placed=self.placed, total=self.total)

    def _runs(self, node: Node, made: Mapping[int, Variant]) -> Iterator[tuple[int, int]]:
        """The plan's runs of variants over fewer instances: one of each, the rest to the longest."""
        name, params = node.results[0].name, node.attr("params")
        runs = self.plan.assignment.calls.get(self.names.get((self.model.graph.name, name), ""))
        if runs is None or not isinstance(params, tuple) or any(index not in made for _, index in runs):
            raise MismatchError(f"the plan has no repeated block at {name}: the model is folded in another way")
        runs = runs[: len(params)]
        longest = max(range(len(runs)), key=lambda at: runs[at][0])
        rest = len(params) - len(runs)
        for at, (_, index) in enumerate(runs):
            yield 1 + (rest if at == longest else 0), index

    def _variant(self, variant: PlanVariant, graph: Graph, calls: Mapping[str, Variant]) -> Variant:
        storage: dict[str, Layout] = {}
        inputs: dict[str, Layout] = {}
        for node in graph.nodes:
            into, known = (inputs, variant.inputs) if node.target == "input" else (storage, variant.storage)
            text = known.get(self.names.get((graph.name, node.results[0].name), ""))
            if node.target in SOURCES and text is not None:
                found = smaller(Layout.parse(text, self.planned), self.mesh)
                fits = found.problem(node.result.type.shape) is None
                into[node.result.name] = found if fits else Layout.replicated(self.mesh)
        made: dict[str, Layout] = {**storage, **inputs}
        nodes: dict[str, Strategy] = {}
        for node in graph.nodes:
            name = node.results[0].name
            if node.target in SOURCES:
                made.setdefault(name, Layout.replicated(self.mesh))
            elif node.target == "call":
                made.update(self._returned(node, calls[name]))
            elif graph is not self.model.graph or name in self.model.live:
                nodes[name] = self._strategy(variant, graph, node, made)
                made.update((v.name, at) for v, at in zip(node.results, nodes[name].results, strict=True))
        sharded = any(self.mesh.size(axis) > 1 for axis in self.mesh.names if reduces_gradients(axis))
        zero = variant.zero if sharded else 0
        inside = tuple((axis, math.gcd(variant.inside[axis], size)) for axis, size in self.mesh.axes
                       if axis in variant.inside and size > 1)
        mode = Mode(variant.recompute, zero, inside if zero else ())
        return Variant(graph=graph.name, mode=mode, nodes=nodes, storage=storage, inputs=inputs)

    def _returned(self, node: Node, variant: Variant) -> Iterator[tuple[str, Layout]]:
        block = self.model.graph.block(str(node.attr("block")))
        for _, value, output in returned(node, block):
            yield value.name, variant.made(block, output)

    def _strategy(self, variant: PlanVariant, graph: Graph, node: Node, made: Mapping[str, Layout]) -> Strategy:
        key = node_key(graph, node)
        rule, shapes, operands = self.model.rules[key], self.model.shapes[key], flat_operands(node)
        self.total += node.target not in _CASTS
        text = variant.nodes.get(self.names.get(key, ""))
        if text is not None:
            wanted = zip(self.mesh.names, parse_choices(text, self.planned), strict=True)
            choices = [self._choice(key, choice, axis) for axis, choice in wanted]
            offered = tuple(choice for choice in choices if choice is not None)
            chosen = strategy(rule, offered, shapes, self.mesh) if len(offered) == len(choices) else None
            if chosen is not None:
                self.placed += 1
                return chosen
        sums = [frozenset[str]() if n is None else self.partial[graph.name, n] for n in operands]
        legal = strategies(rule, self.found, key, shapes, self.mesh, sums)

        def price(option: Strategy) -> int:
            pairs = zip(operands, option.operands, strict=True)
            return sum(
                self.conversions.cost_ns(self.model.facts[graph.name, n], made[n], need)[0]
                for n, need in pairs if n is not None and need is not None
            )  # fmt: skip

        return min(legal, key=price)

    def _choice(self, key: tuple[str, str], choice: Choice, axis: str) -> Choice | None:
        """The choice with its stride in this model, None if it is not offered; nothing on an axis of one device."""
        size = self.mesh.size(axis)
        if size == 1:
            return NOTHING
        factor = choice.factor
        if factor is None:
            return choice
        if factor not in self.model.rules[key].sizes:
            raise MismatchError(f"the plan splits {factor} of {key[1]}, which has none: folded in another way")
        offered = self.found.offered(key, factor, self.model.rules[key].sizes[factor], axis, size)
        into = choice.into
        if into is not None and not self.found.offered(key, into, self.model.rules[key].sizes[into], axis, size):
            return None
        if choice.outer in offered:
            return choice
        inner = [at for at in offered if at > 1]
        return Choice(factor, inner[0], into=into) if choice.outer > 1 and len(inner) == 1 else None
