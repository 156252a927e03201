"""From a graph and choices written as text to a lowered program, without a solver in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from autopar.cost_model import Cluster, axis_groups, load_profile
from autopar.ir.convert import COLLECTIVES
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS, Program
from autopar.ir.types import TensorType
from autopar.passes.assignment import Assignment, Variant
from autopar.passes.build import Model
from autopar.passes.candidate import Mode, Settings, StoredParameter, with_time
from autopar.passes.conversions import Conversions
from autopar.passes.facts import facts
from autopar.passes.lower import lower
from autopar.passes.positions import instantiate_rules, node_key
from autopar.passes.prepare import needed_for
from autopar.passes.pricing import Pricing
from autopar.passes.strategies import Strategy, node_shapes, parse_choices, strategy
from autopar.runtime.dtypes import IR_DTYPES


def type_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(IR_DTYPES[tensor.dtype], tuple(tensor.shape))


def stored_of(graph: Graph) -> dict[str, StoredParameter]:
    """What the source nodes of an unfolded graph say of its parameters."""
    found = {}
    for node in graph.nodes:
        if node.target in ("param", "buffer", "constant"):
            kind = node.result.type
            found[str(node.attr("fqn"))] = StoredParameter(
                dtype=kind.dtype, shape=kind.shape, compute_dtype=kind.dtype, trainable=node.target == "param",
                buffer=node.target != "param",
            )  # fmt: skip
    return found


def model_of(
    graph: Graph,
    inputs: Mapping[str, tuple[int | None, int | None]] | None = None,
    parameters: Mapping[str, StoredParameter] | None = None,
    *,
    zero: int | None = None,
    recompute: str | None = None,
) -> Model:
    """The model that strategies, costs and lowering know. ``inputs``: (batch dim, sequence dim) of each."""
    known = facts(graph)
    return Model(
        graph=graph, rules=instantiate_rules(graph), facts=known, shapes=node_shapes(graph, known),
        parameters=stored_of(graph) if parameters is None else parameters,
        settings=Settings(inputs=inputs or {}, zero=zero, recompute=recompute), loss=graph.outputs[0],
        live=needed_for(graph, graph.outputs[0]),
    )  # fmt: skip


def pricing_of(mesh: Mesh, profile: str | None = None) -> Pricing:
    """Prices on one node of CPUs; ``mesh`` may have the microbatch axis."""
    axes = tuple(axis for axis in mesh.axes if axis[0] != MICROBATCH_AXIS)
    cluster = Cluster.parse(f"1x{Mesh(axes).world_size}xCPU")
    return Pricing(mesh=mesh, cluster=cluster, profile=load_profile(profile), groups=axis_groups(axes, cluster))


def assigned(
    model: Model,
    mesh: Mesh,
    choices: Mapping[str, Mapping[str, str]],
    layouts: Mapping[str, str] | None = None,
) -> Assignment:
    """Choices by node and axis as text (absent: ``-``); layouts of inputs and storage as text (absent: R)."""
    nodes: dict[str, Strategy] = {}
    kept: dict[str, Layout] = {}
    inputs: dict[str, Layout] = {}
    for node in model.graph.nodes:
        name = node.results[0].name
        if node.target in SOURCES:
            into = inputs if node.target == "input" else kept
            into[name] = Layout.parse((layouts or {}).get(name, ""), mesh)
            continue
        key = node_key(model.graph, node)
        made = strategy(model.rules[key], parse_choices(choices.get(name, {}), mesh), model.shapes[key], mesh)
        assert made is not None, f"{name}: {choices.get(name)} does not fit"
        nodes[name] = made
    main = Variant(graph=model.graph.name, mode=Mode("none", 0), nodes=nodes, storage=kept, inputs=inputs)
    return Assignment(mesh=mesh, main=main, calls={})


def lowered(
    model: Model,
    mesh: Mesh,
    choices: Mapping[str, Mapping[str, str]],
    layouts: Mapping[str, str] | None = None,
    *,
    microbatches: int = 1,
) -> Program:
    """The program of a model whose placements are written down."""
    full = with_time(mesh, microbatches)
    assignment = assigned(model, full, choices, layouts)
    return lower(model, assignment, Conversions(pricing_of(full)), microbatches)


def comms(graphs: Iterable[Graph]) -> list[Node]:
    return [node for graph in graphs for node in graph.nodes if node.target.startswith("comm.")]


def all_graphs(program: Program) -> list[Graph]:
    before = [] if program.prologue is None else [program.prologue]
    return [*before, *program.graph.blocks, program.graph]


def collectives(program: Program, axis: str, direction: str = "forward") -> list[str]:
    """Kinds of data movement over ``axis`` in program order, those of the runtime left out."""
    kinds = [
        (node.target.removeprefix("comm.") if direction == "forward" else str(node.attr("backward")))
        for node in comms(all_graphs(program))
        if node.attr("axis") == axis and node.attr("owner") != "runtime"
    ]
    return [kind for kind in kinds if kind in COLLECTIVES]


def names_of(program: Program, graph: Graph, node: Node) -> list[str]:
    """The parameters behind a source node: one, or one for each call of a block."""
    slot = node.attr("slot")
    if not isinstance(slot, int):
        return [str(node.attr("fqn"))]
    calls = [call for call in program.graph.nodes if call.target == "call" and call.attr("block") == graph.name]
    rows = [names for call in calls for names in call.attr("params")]  # type: ignore[union-attr]
    return [str(names[slot]) for names in rows]  # type: ignore[index]
