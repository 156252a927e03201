"""A solved problem in the graph's own terms: a strategy per node, a storage per parameter, a mode.

``decode`` reads a solution, ``to_plan`` and ``from_plan`` are each the other's inverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.errors import MismatchError
from autopar.ir.graph import SOURCES, Graph
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.plan import Assignment as PlanAssignment
from autopar.ir.plan import Variant as PlanVariant
from autopar.passes.build import Encoded, Model
from autopar.passes.candidate import Inside, Mode, reduces_gradients
from autopar.passes.positions import node_key
from autopar.passes.segments import Variable
from autopar.passes.solve import Solution
from autopar.passes.strategies import Joint, Strategy, parse_choices, strategy


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to place one graph. ``inputs``: layouts in which a block's inputs come."""

    graph: str
    mode: Mode
    nodes: Mapping[str, Strategy]
    storage: Mapping[str, Layout]
    inputs: Mapping[str, Layout]

    def made(self, graph: Graph, name: str) -> Layout:
        """The layout in which a value of its ``graph`` is made."""
        producer = graph.producers()[name]
        if producer.target in SOURCES:
            return (self.inputs if producer.target == "input" else self.storage)[name]
        at = [value.name for value in producer.results].index(name)
        return self.nodes[producer.results[0].name].results[at]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """``calls``: for each call node (its first result) runs of (repeat, variant)."""

    mesh: Mesh
    main: Variant
    calls: Mapping[str, tuple[tuple[int, Variant], ...]]


def decode(model: Model, encoded: Encoded, solution: Solution, mesh: Mesh) -> Assignment:
    """The meaning of a solution."""
    main = _variant(model.graph, encoded.variables[model.graph.name], solution.root)
    calls = {}
    for node, runs in zip(encoded.calls, solution.calls, strict=True):
        block = model.graph.block(str(node.attr("block")))
        found = [(repeat, _variant(block, encoded.variables[block.name], values)) for repeat, values in runs]
        calls[node.results[0].name] = tuple(found)
    return Assignment(mesh=mesh, main=main, calls=calls)


def _variant(graph: Graph, variables: tuple[Variable, ...], values: tuple[int, ...]) -> Variant:
    mode = Mode("none", 0)
    nodes: dict[str, Strategy] = {}
    layouts: dict[str, Layout] = {}
    for variable, value in zip(variables, values, strict=True):
        chosen = variable.values[value]
        if isinstance(chosen, Mode):
            mode = chosen
        elif isinstance(chosen, Strategy):
            nodes[variable.name] = chosen
        elif isinstance(chosen, Joint):
            nodes.update(zip(chosen.nodes, chosen.strategies, strict=True))
        elif isinstance(chosen, Layout) and variable.kind in ("source", "shared"):
            layouts.update(dict.fromkeys((variable.name, *variable.like), chosen))
    inputs = {node.result.name for node in graph.sources("input")}
    kept = {node.result.name for target in SOURCES[1:] for node in graph.sources(target)}
    return Variant(
        graph=graph.name, mode=mode, nodes=nodes,
        storage={name: layout for name, layout in layouts.items() if name in kept},
        inputs={name: layout for name, layout in layouts.items() if name in inputs},
    )  # fmt: skip


def to_plan(assignment: Assignment) -> PlanAssignment:
    """As data; equal variants are written once."""
    variants: list[PlanVariant] = []

    def index(variant: Variant) -> int:
        data = PlanVariant(
            graph=variant.graph,
            recompute=variant.mode.recompute,  # type: ignore[arg-type]
            zero=variant.mode.zero,  # type: ignore[arg-type]
            nodes={name: chosen.text(assignment.mesh) for name, chosen in variant.nodes.items()},
            storage={name: layout.text() for name, layout in variant.storage.items()},
            inputs={name: layout.text() for name, layout in variant.inputs.items()},
            inside=dict(variant.mode.inside),
        )
        if data not in variants:
            variants.append(data)
        return variants.index(data)

    main = index(assignment.main)
    calls = {name: tuple((repeat, index(v)) for repeat, v in runs) for name, runs in assignment.calls.items()}
    return PlanAssignment(variants=tuple(variants), main=main, calls=calls)


def from_plan(plan: PlanAssignment, model: Model, mesh: Mesh) -> Assignment:
    """Layouts worked out again from the choices; raises MismatchError where they do not fit the graph."""
    made = [_read(variant, model, mesh) for variant in plan.variants]
    calls = {
        node.results[0].name: tuple(
            (repeat, made[index]) for repeat, index in _runs(plan, node.results[0].name)
        )
        for node in model.graph.nodes
        if node.target == "call"
    }
    return Assignment(mesh=mesh, main=made[plan.main], calls=calls)


def _runs(plan: PlanAssignment, name: str) -> tuple[tuple[int, int], ...]:
    if name not in plan.calls:
        raise MismatchError(f"the plan does not say how to run the repeated block at {name}")
    return plan.calls[name]


def _inside(variant: PlanVariant, mesh: Mesh) -> Inside:
    """In the mesh's order: keys of a JSON object have none."""
    wrong = [axis for axis in variant.inside if axis not in mesh.names or not reduces_gradients(axis)]
    if wrong:
        raise MismatchError(f"the plan cuts parameters of {variant.graph} along {wrong[0]}, which is no data axis")
    return tuple((axis, variant.inside[axis]) for axis in mesh.names if axis in variant.inside)


def _read(variant: PlanVariant, model: Model, mesh: Mesh) -> Variant:
    graphs = {graph.name: graph for graph in (*model.graph.blocks, model.graph)}
    if variant.graph not in graphs:
        raise MismatchError(f"the plan places {variant.graph!r}, which this model does not have")
    graph = graphs[variant.graph]
    nodes = {}
    for node in graph.nodes:
        if node.target in (*SOURCES, "call"):
            continue
        name, key = node.results[0].name, node_key(graph, node)
        if name not in variant.nodes:
            raise MismatchError(f"the plan has no placement for {name} = {node.target} of {graph.name}")
        chosen = strategy(model.rules[key], parse_choices(variant.nodes[name], mesh), model.shapes[key], mesh)
        if chosen is None:
            raise MismatchError(f"the plan's placement of {name} = {node.target} does not fit its shapes")
        nodes[name] = chosen
    return Variant(
        graph=graph.name,
        mode=Mode(variant.recompute, variant.zero, _inside(variant, mesh)),
        nodes=nodes,
        storage={name: Layout.parse(text, mesh) for name, text in variant.storage.items()},
        inputs={name: Layout.parse(text, mesh) for name, text in variant.inputs.items()},
    )
