"""What a step needs of the whole batch before its first microbatch, such as the number of valid labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.ir.graph import SOURCES, Graph, Node, renamed
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.passes.assignment import Variant
from autopar.passes.build import Model
from autopar.passes.conversions import Conversions
from autopar.passes.early import without_time
from autopar.passes.lower_graph import lower_graph
from autopar.passes.positions import node_key
from autopar.passes.strategies import strategy


def make_prologue(
    model: Model,
    main: Variant,
    conversions: Conversions,
    crossing: Mapping[tuple[str, Layout], str],
    mesh: Mesh,
) -> Graph:
    """The ancestors of the crossing values, lowered without the microbatch axis.

    Outputs are named as the main graph's inputs will be (``crossing``'s values).
    """
    wanted = {name for name, _ in crossing}
    nodes: list[Node] = []
    for node in reversed(model.graph.nodes):
        if any(value.name in wanted for value in node.results):
            wanted.update(node.uses())
            nodes.append(node)
    graph = Graph(
        name=model.graph.name, nodes=tuple(reversed(nodes)), outputs=tuple(name for name, _ in crossing)
    )
    strategies = {}
    for node in graph.nodes:
        if node.target not in SOURCES:
            key, name = node_key(graph, node), node.results[0].name
            choices = main.nodes[name].choices[: len(mesh.axes)]
            made = strategy(model.rules[key], choices, model.shapes[key], mesh)
            assert made is not None
            strategies[name] = made
    variant = replace(
        main, nodes=strategies,
        storage={name: without_time(layout) for name, layout in main.storage.items()},
        inputs={name: without_time(layout) for name, layout in main.inputs.items()},
    )  # fmt: skip
    outputs = [without_time(layout) for _, layout in crossing]
    lowered = lower_graph(
        model, graph, variant, conversions, mesh, outputs=outputs, calls={}, root=True
    ).graph
    rename = dict(zip(lowered.outputs, crossing.values(), strict=True))
    nodes = [
        replace(renamed(node, rename), results=tuple(replace(v, name=rename.get(v.name, v.name)) for v in node.results))
        for node in lowered.nodes
    ]
    return replace(lowered, name="prologue", nodes=tuple(nodes), outputs=tuple(crossing.values()))
