"""A plan's choices on the model in its other mode: evaluation for a plan of training, training for one of evaluation.

The two graphs are equal but for what the mode changes (dropout, batch norm, branches on ``training``), so
operations are paired in order, whatever the folding; what has no partner follows its operands. Parameters,
buffers and inputs stay as the plan's program keeps them: both programs run on the same tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from autopar.ir.calls import carried, collected
from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.layout import Layout
from autopar.ir.program import Program
from autopar.passes.align import align
from autopar.passes.assignment import Assignment, Variant
from autopar.passes.build import Model
from autopar.passes.candidate import Mode
from autopar.passes.conversions import Conversions
from autopar.passes.partials import partial_axes
from autopar.passes.positions import flat_operands, node_key, positions
from autopar.passes.problem import FORBIDDEN
from autopar.passes.strategies import Choice, Strategy, strategies, strategy

# (first result of the call or "", number of the instance, first result of the node)
Place = tuple[str, int, str]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A model as it was planned, the plan's choices for it, and the program that they give."""

    model: Model
    assignment: Assignment
    program: Program


def in_other_mode(planned: Planned, model: Model, conversions: Conversions) -> Assignment:
    """The choices of ``planned`` for ``model``: the same parameters, inputs and mesh, another mode.

    Raises UnsupportedError naming an operation that cannot be placed.
    """
    return _OtherMode(planned, model, conversions).run()


def operations(graph: Graph) -> Iterator[tuple[Place, Hashable]]:
    """Every operation of a folded graph as often as it runs, in order; partners in two graphs have equal keys.

    The key is what an operation does, on which parameters, to what.
    """
    main = graph.producers()
    known = {block.name: block.producers() for block in graph.blocks}
    for node in graph.nodes:
        name = node.results[0].name
        if node.target == "call":
            block, params = graph.block(str(node.attr("block"))), node.attr("params")
            assert isinstance(params, tuple)
            for index, slots in enumerate(params):
                assert isinstance(slots, tuple)
                for inner in block.nodes:
                    if inner.target not in SOURCES:
                        yield (name, index, inner.results[0].name), _key(known[block.name], inner, slots)
        elif node.target not in SOURCES:
            yield ("", 0, name), _key(main, node, ())


def _key(known: Mapping[str, Node], node: Node, slots: tuple[object, ...]) -> Hashable:
    stored: list[str] = []
    for name in node.uses():
        if known[name].target in ("param", "buffer"):
            slot = known[name].attr("slot")
            stored.append(str(slots[slot] if isinstance(slot, int) else known[name].attr("fqn")))
    return node.target, tuple(str(value.type) for value in node.results), tuple(stored)


@dataclass(eq=False)
class _OtherMode:
    planned: Planned
    model: Model
    conversions: Conversions
    choices: dict[Place, tuple[Choice, ...]] = field(default_factory=dict)
    modes: dict[Place, Mode] = field(default_factory=dict)
    chosen: dict[tuple[object, ...], Strategy] = field(default_factory=dict)

    def run(self) -> Assignment:
        model, self.mesh = self.model, self.conversions.pricing.mesh
        self.found = positions(model.graph, model.rules, model.settings.inputs)
        self.partial = partial_axes(model.graph, model.rules, self.found, self.mesh)
        self.kept = {p.fqn: self._in_time(p.layout) for p in self.planned.program.parameters}
        self._pair()
        calls: dict[str, tuple[tuple[int, Variant], ...]] = {}
        main = self._variant(model.graph, ("", 0), (), self._inputs(), calls)
        return Assignment(mesh=self.mesh, main=main, calls=calls)

    def _in_time(self, layout: Layout) -> Layout:
        return Layout.of(self.mesh, dict(zip(layout.mesh.names, layout.placements, strict=True)))

    def _pair(self) -> None:
        """The plan's choices, and the mode of its block, for each operation that has a partner in it."""
        theirs, ours = list(operations(self.planned.model.graph)), list(operations(self.model.graph))
        variants = dict(self._variants())
        for at, their in align([key for _, key in theirs], [key for _, key in ours]).items():
            place = theirs[their][0]
            variant = variants[place[:2]]
            if place[2] in variant.nodes:
                self.choices[ours[at][0]] = variant.nodes[place[2]].choices
                self.modes.setdefault((*ours[at][0][:2], ""), variant.mode)

    def _variants(self) -> Iterator[tuple[tuple[str, int], Variant]]:
        assignment = self.planned.assignment
        yield ("", 0), assignment.main
        for name, runs in assignment.calls.items():
            each = itertools.chain.from_iterable([variant] * repeat for repeat, variant in runs)
            yield from (((name, index), variant) for index, variant in enumerate(each))

    def _inputs(self) -> dict[str, Layout]:
        """Layouts of the main graph's inputs by value: a rank is given the same part in both modes."""
        whole = Layout.replicated(self.mesh)
        sources, main = self.planned.model.graph.sources("input"), self.planned.assignment.main
        known = {str(node.attr("name")): main.inputs.get(node.result.name, whole) for node in sources}
        entries = self.model.graph.sources("input")
        return {node.result.name: known.get(str(node.attr("name")), whole) for node in entries}

    def _variant(
        self, graph: Graph, at: tuple[str, int], slots: tuple[str, ...], inputs: Mapping[str, Layout],
        calls: dict[str, tuple[tuple[int, Variant], ...]],
    ) -> Variant:  # fmt: skip
        made = dict(inputs)
        storage: dict[str, Layout] = {}
        nodes: dict[str, Strategy] = {}
        for node in graph.nodes:
            name = node.results[0].name
            if node.target == "input":
                continue
            if node.target in SOURCES:
                slot = node.attr("slot")
                fqn = slots[slot] if isinstance(slot, int) else str(node.attr("fqn"))
                storage[name] = made[name] = self.kept.get(fqn, Layout.replicated(self.mesh))
            elif node.target == "call":
                calls[name] = self._call(node, made)
            else:
                nodes[name] = self._strategy(graph, node, self.choices.get((*at, name)), made)
                made.update((v.name, to) for v, to in zip(node.results, nodes[name].results, strict=True))
        mode = self.modes.get((*at, ""), Mode("none", 0))
        return Variant(graph=graph.name, mode=mode, nodes=nodes, storage=storage, inputs=dict(inputs))

    def _call(self, node: Node, made: dict[str, Layout]) -> tuple[tuple[int, Variant], ...]:
        """Instance after instance: each takes in what the one before gives out."""
        name, params = node.results[0].name, node.attr("params")
        block = self.model.graph.block(str(node.attr("block")))
        entries = [entry.result.name for entry in block.sources("input")]
        entering = [made[operand] for operand in node.uses()]
        handed, own = carried(node), collected(node)
        found: list[Variant] = []
        assert isinstance(params, tuple)
        for index, slots in enumerate(params):
            assert isinstance(slots, tuple)
            inputs = dict(zip(entries, entering, strict=True))
            found.append(self._variant(block, (name, index), tuple(map(str, slots)), inputs, {}))
            leaving = [found[-1].made(block, output) for output in block.outputs]
            entering[:handed] = leaving[:handed]
            made.update((v.name, to) for v, to in zip(own[index], leaving[handed:], strict=False))
        made.update((v.name, to) for v, to in zip(node.results[:handed], entering, strict=False))
        runs: list[tuple[int, Variant]] = []
        for variant in found:
            same = bool(runs) and runs[-1][1] == variant
            runs[-1:] = [(runs[-1][0] + 1, variant)] if same else [*runs[-1:], (1, variant)]
        return tuple(runs)

    def _strategy(
        self, graph: Graph, node: Node, choices: tuple[Choice, ...] | None, made: Mapping[str, Layout]
    ) -> Strategy:
        key, operands = node_key(graph, node), flat_operands(node)
        have = tuple(None if name is None else made[name] for name in operands)
        seen = (key, choices, have)
        if seen not in self.chosen:
            self.chosen[seen] = self._choose(graph, node, choices, have)
        return self.chosen[seen]

    def _choose(
        self, graph: Graph, node: Node, choices: tuple[Choice, ...] | None, have: tuple[Layout | None, ...]
    ) -> Strategy:
        key, operands = node_key(graph, node), flat_operands(node)
        rule, shapes = self.model.rules[key], self.model.shapes[key]

        def price(option: Strategy, crosses: bool = False) -> int:
            total = 0
            for name, at, need in zip(operands, have, option.operands, strict=True):
                if name is not None and at is not None and need is not None:
                    fact = self.model.facts[graph.name, name]
                    free = crosses or (graph is self.model.graph and fact.pure)
                    total += self.conversions.cost_ns(fact, at, need, crosses_time=free)[0]
            return total

        planned = None if choices is None else strategy(rule, choices, shapes, self.mesh)
        if planned is not None and price(planned) < FORBIDDEN:
            return planned
        sums = [frozenset[str]() if name is None else self.partial[graph.name, name] for name in operands]
        legal = strategies(rule, self.found, key, shapes, self.mesh, sums)
        best = min(legal, key=price, default=None)
        aside = graph is self.model.graph and key[1] not in self.model.live  # it may be withheld
        if best is not None and aside and price(best) >= FORBIDDEN:
            best = min(legal, key=partial(price, crosses=True))
        if best is None or price(best, crosses=aside) >= FORBIDDEN:
            where = f"{node.source or node.results[0].name}: {node.target}"
            raise UnsupportedError(f"{where} has no placement in the other mode of the model under this plan")
        return best


