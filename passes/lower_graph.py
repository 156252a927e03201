"""Lower one graph under one variant: local operations, explicit conversions.

Where a node needs an operand in another layout than it is made in, the value's conversions stand right
before the first use; each is made once and shared by all that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autopar.ir.convert import Step, convert
from autopar.ir.errors import IRError
from autopar.ir.graph import SOURCES, Graph, Node, Operand, Value
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.optable import row
from autopar.ir.program import MICROBATCH_AXIS
from autopar.ir.types import Attr
from autopar.passes.assignment import Variant
from autopar.passes.build import Model
from autopar.passes.conversions import Conversions
from autopar.passes.early import Placed, entering_name
from autopar.passes.facts import Fact
from autopar.passes.localize import localize
from autopar.passes.losses import fuse
from autopar.passes.positions import flat_operands, node_key
from autopar.passes.storage import as_used, runtime_axes
from autopar.passes.strategies import Strategy
from autopar.passes.tree import conversion_tree


def comm(step: Step, operand: str, result: Value, *, owner: str = "") -> Node:
    """A step as a node."""
    attrs: dict[str, Attr] = {"axis": step.axis, "backward": step.backward}
    if step.kind in ("all_gather", "reduce_scatter", "slice", "all_to_all"):
        attrs |= {"dim": step.dim, "outer": step.outer}
    if step.kind == "all_to_all":
        attrs |= {"dim_to": step.dim_to, "outer_to": step.outer_to}
    if step.extent:
        attrs["extent"] = step.extent
    if step.reduce != "sum":
        attrs["reduce"] = step.reduce
    if owner:
        attrs["owner"] = owner
    return Node(
        results=(result,), target=f"comm.{step.kind}", operands=(operand,), attrs=tuple(sorted(attrs.items()))
    )


@dataclass(frozen=True, kw_only=True)
class CallLayouts:
    """Layouts of a call's operands and results, fixed by the variants that it runs."""

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """``runtime_axes``: by parameter node, the axes on which the runtime reduces its gradient.

    ``crossing``: (value, layout) pairs that the prologue makes, and the input that brings each.
    """

    graph: Graph
    runtime_axes: Mapping[str, tuple[str, ...]]
    crossing: Mapping[tuple[str, Layout], str]


def lower_graph(
    model: Model, graph: Graph, variant: Variant, conversions: Conversions, mesh: Mesh, *,
    outputs: Sequence[Layout | None], calls: Mapping[str, CallLayouts], root: bool,
) -> Lowered:  # fmt: skip
    """Lower ``graph``. ``outputs``: layout in which each output is returned, None: as it is made."""
    work = _GraphLowering(model, graph, variant, conversions, mesh, outputs, calls, root)
    return work.run()


@dataclass(eq=False)
class _GraphLowering:
    model: Model
    graph: Graph
    variant: Variant
    conversions: Conversions
    mesh: Mesh
    outputs: Sequence[Layout | None]
    calls: Mapping[str, CallLayouts]
    root: bool
    nodes: list[Node] = field(default_factory=list)
    made: dict[str, dict[Layout, str]] = field(default_factory=dict)
    needs: dict[str, list[Layout]] = field(default_factory=dict)
    trees: dict[str, dict[Layout, Layout]] = field(default_factory=dict)
    owned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    placed: Placed | None = None  # of a main graph that runs once a microbatch
    crossing: dict[tuple[str, Layout], Value] = field(default_factory=dict)
    count: int = 0

    def run(self) -> Lowered:
        if self.root and MICROBATCH_AXIS in self.mesh.names:
            self.placed = Placed(
                graph=self.graph, chosen=self.variant.nodes, given={**self.variant.inputs, **self.variant.storage},
                pure=self.model.pure,
            )  # fmt: skip
            calls = {name: layouts.operands for name, layouts in self.calls.items()}
            late = self.placed.timing(calls, dict(zip(self.graph.outputs, self.outputs, strict=True))).late
            nodes = [node for node in self.graph.nodes if node.target in SOURCES or node.results[0].name in late]
            self.graph = replace(self.graph, nodes=tuple(nodes))
        self._collect_needs()
        for node in self.graph.nodes:
            if node.target in SOURCES:
                self._source(node)
            elif node.target == "call":
                self._call(node)
            else:
                self._operation(node)
        names = tuple(
            self._first(name) if need is None else self._get(name, need)
            for name, need in zip(self.graph.outputs, self.outputs, strict=True)
        )
        graph = Graph(name=self.graph.name, nodes=self._entered(), outputs=names, mesh=self.mesh)
        crossing = {at: value.name for at, value in self.crossing.items()}
        return Lowered(graph=fuse(graph), runtime_axes=self.owned, crossing=crossing)

    def _entered(self) -> tuple[Node, ...]:
        """The nodes, with what the prologue makes behind the inputs."""
        given = [
            Node(results=(value,), target="input", attrs=(("name", value.name),)) for value in self.crossing.values()
        ]
        first = next((i for i, node in enumerate(self.nodes) if node.target != "input"), len(self.nodes))
        return (*self.nodes[:first], *given, *self.nodes[first:])

    def _crosses(self, name: str, need: Layout) -> bool:
        """Whether the value is needed of the whole batch."""
        return self.placed is not None and self.placed.crosses(name, need)

    def _fact(self, name: str) -> Fact:
        return self.model.facts[self.graph.name, name]

    def _first(self, name: str) -> str:
        return next(iter(self.made[name].values()))

    def _collect_needs(self) -> None:
        """Every layout in which each value is needed, in order of use.

        Of a main graph for its loss: what else it returns has no say in how that is come by.
        """
        loss, sources = self.model.loss, {node.result.name for node in self.graph.nodes if node.target in SOURCES}
        training = self.root and loss in self.graph.outputs
        for node in self.graph.nodes:
            asked = not training or node.results[0].name in self.model.live
            for name, need in zip(flat_operands(node), self._needs(node), strict=True):
                if name is not None and need is not None and (asked or name in sources):
                    self._need(name, need)
        for name, need in zip(self.graph.outputs, self.outputs, strict=True):
            if need is not None and (name == loss or not training):
                self._need(name, need)

    def _needs(self, node: Node) -> Sequence[Layout | None]:
        """The layout in which a node needs each of its operands."""
        if node.target == "call":
            return self.calls[node.results[0].name].operands
        return () if node.target in SOURCES else self.variant.nodes[node.results[0].name].operands

    def _need(self, name: str, need: Layout) -> None:
        known = self.needs.setdefault(name, [])
        if need not in known and not self._crosses(name, need):
            known.append(need)

    def _emit(self, node: Node, layouts: Sequence[Layout]) -> None:
        results = tuple(
            replace(value, layout=layout) for value, layout in zip(node.results, layouts, strict=True)
        )
        self.nodes.append(replace(node, results=results))
        for value, layout in zip(node.results, layouts, strict=True):
            self.made[value.name] = {layout: value.name}

    def _source(self, node: Node) -> None:
        name = node.result.name
        known = self.variant.inputs if node.target == "input" else self.variant.storage
        layout = known.get(name, Layout.replicated(self.mesh))
        self._emit(node, (layout,))
        if node.target != "param" or name not in self.needs or not self._fact(name).grad:
            return
        needs, trainable = tuple(self.needs[name]), bool(self._fact(name).type.shape)
        self.owned[name] = runtime_axes(layout, needs, trainable=trainable)
        for axis in (*self.owned[name], *((MICROBATCH_AXIS,) if MICROBATCH_AXIS in self.mesh.names else ())):
            self._runtime_owned(name, axis)

    def _runtime_owned(self, name: str, axis: str) -> None:
        """R → R* on an axis where the runtime adds up the gradients; time shows no star."""
        ((layout, at),) = self.made[name].items()
        to = layout if axis == MICROBATCH_AXIS else as_used(layout, (axis,))
        step = Step(kind="identity", backward="all_reduce", axis=axis, before=layout, after=to)
        result = Value(f"{name}.{axis}", self._fact(name).type, to)
        self.nodes.append(comm(step, at, result, owner="runtime"))
        self.made[name] = {to: result.name}

    def _call(self, node: Node) -> None:
        layouts = self.calls[node.results[0].name]
        operands = tuple(
            self._bring(n, need) for n, need in zip(flat_operands(node), layouts.operands, strict=True)
        )
        self._emit(replace(node, operands=operands), layouts.results)

    def _operation(self, node: Node) -> None:
        chosen = self.variant.nodes[node.results[0].name]
        needs = iter(chosen.operands)
        operands: list[Operand] = []
        for operand in node.operands:
            if isinstance(operand, tuple):
                operands.append(tuple(self._bring(name, next(needs)) for name in operand))
            else:
                operands.append(self._bring(operand, next(needs)))
        shapes = [None if name is None else self._fact(name).type.shape for name in flat_operands(node)]
        local = localize(node, chosen, shapes)
        if local.attr("exchange") is not None and (inside := self._inside(node, chosen)):
            local = local.with_attrs(inside=inside)
        self._emit(replace(local, operands=tuple(operands[: len(local.operands)])), chosen.results)

    def _inside(self, node: Node, chosen: Strategy) -> int:
        """Among how many neighbours on a node an exchange sends first; 0: in one step."""
        rule, pricing = self.model.rules[node_key(self.graph, node)], self.conversions.pricing
        return pricing.exchange_inside(rule, row(node), chosen.choices, node.results[0].type.dtype)

    def _bring(self, name: str | None, need: Layout | None) -> str | None:
        return None if name is None or need is None else self._get(name, need)

    def _get(self, name: str, need: Layout) -> str:
        """Name of the value in the layout needed; emits the conversions that lead there."""
        known = self.made.setdefault(name, {})  # of what the prologue alone makes nothing yet
        if need in known:
            return known[need]
        if self._crosses(name, need):
            self.count += 1
            given = self.crossing[name, need] = Value(entering_name(name, self.count), self._fact(name).type, need)
            known[need] = given.name
            return given.name
        if name not in self.trees:
            pairs = conversion_tree(
                self.conversions, self._fact(name), next(iter(known)), self.needs.get(name, ()),
                crosses_time=self.root and (self._fact(name).pure or name == self.model.loss),
            )  # fmt: skip
            self.trees[name] = {to: start for start, to in pairs}
        start = self.trees[name].setdefault(need, next(iter(known)))
        known[need] = self._convert(name, start, need)
        return known[need]

    def _convert(self, name: str, start: Layout, need: Layout) -> str:
        fact, at = self._fact(name), self._get(name, start)
        steps = convert(start, need, fact.type.shape, grad=fact.grad)
        for step in steps:
            if step.axis == MICROBATCH_AXIS and name != self.model.loss:
                raise IRError(f"{self.graph.name}: {name} depends on parameters and is needed of the whole batch")
            self.count += 1
            result = Value(f"{name}.{self.count}", fact.type, step.after)
            self.nodes.append(comm(step, at, result))
            at = result.name
        return at
