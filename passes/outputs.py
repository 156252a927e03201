"""Placements for what the model returns besides the loss: never trained on, so chosen greedily."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.calls import returned
from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import SOURCES
from autopar.ir.layout import Layout
from autopar.passes.assignment import Assignment
from autopar.passes.build import Model
from autopar.passes.conversions import Conversions
from autopar.passes.partials import partial_axes
from autopar.passes.positions import Positions, flat_operands, node_key
from autopar.passes.strategies import Strategy, strategies


def place_outputs(
    model: Model, assignment: Assignment, found: Positions, conversions: Conversions
) -> Assignment:
    """The assignment with a strategy for every node that only other outputs need.

    Each takes the strategy whose operands are cheapest to bring, in topological order.
    """
    graph, nodes = model.graph, dict(assignment.main.nodes)
    inputs = dict(assignment.main.inputs)
    partial = partial_axes(graph, model.rules, found, assignment.mesh)
    made = made_in(model, assignment)
    for node in graph.nodes:
        name = node.results[0].name
        if name in model.live:
            continue
        if node.target == "call":
            raise UnsupportedError(f"output {name} depends on repeated blocks that the loss does not need")
        if node.target in SOURCES:
            made[name] = Layout.replicated(assignment.mesh)
            inputs.setdefault(name, made[name])
            continue
        key, operands = node_key(graph, node), flat_operands(node)
        sums = [frozenset() if n is None else partial[graph.name, n] for n in operands]
        legal = strategies(model.rules[key], found, key, model.shapes[key], assignment.mesh, sums)
        if not legal:
            raise UnsupportedError(f"{node.source or node.target}: no placement of {node.target}")

        def price(chosen: Strategy, operands: tuple[str | None, ...] = operands) -> int:
            return sum(
                conversions.cost_ns(model.facts[graph.name, n], made[n], need)[0]
                for n, need in zip(operands, chosen.operands, strict=True)
                if n is not None and need is not None
            )

        chosen = min(legal, key=price)
        nodes[name] = chosen
        made.update({value.name: layout for value, layout in zip(node.results, chosen.results, strict=True)})
    return replace(assignment, main=replace(assignment.main, nodes=nodes, inputs=inputs))


def made_in(model: Model, assignment: Assignment) -> dict[str, Layout]:
    """The layout in which each value of the main graph is made."""
    main = assignment.main
    made = {**main.inputs, **main.storage}
    for node in model.graph.nodes:
        name = node.results[0].name
        if name in main.nodes:
            made.update({v.name: at for v, at in zip(node.results, main.nodes[name].results, strict=True)})
        elif node.target == "call" and name in assignment.calls:
            variants = [variant for repeat, variant in assignment.calls[name] for _ in range(repeat)]
            block = model.graph.block(str(node.attr("block")))
            made.update((value.name, variants[at].made(block, output)) for at, value, output in returned(node, block))
        elif node.target in SOURCES:
            made.setdefault(name, Layout.replicated(assignment.mesh))
    return made
