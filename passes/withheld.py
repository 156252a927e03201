"""What the model returns besides its loss that a microbatch cannot tell.

Such an output follows from sums over the whole batch in a way that is not linear: the square root of a mean, the
exponential of the loss. Nothing that is trained on depends on it, so a step goes on without; it is refused where it is
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.program import MICROBATCH_AXIS
from autopar.passes.assignment import Assignment
from autopar.passes.build import Model
from autopar.passes.early import leaves_time
from autopar.passes.outputs import made_in
from autopar.passes.positions import flat_operands


def without_withheld(model: Model, assignment: Assignment, microbatches: int) -> tuple[Graph, Mapping[int, str]]:
    """The main graph without what leads to such outputs alone, the loss in their places; and by place why they are not
    there."""
    graph, why = model.graph, _withheld(model, assignment)
    if not why:
        return graph, {}
    nodes = tuple(node for node in graph.nodes if not any(value.name in why for value in node.results))
    outputs = tuple(model.loss if name in why else name for name in graph.outputs)
    found = {
        at: f"output {at} of the model depends on {why[name]}, which needs the whole batch and not one of "
        f"{microbatches} microbatches: plan with num_microbatches=1, or work it out from other outputs"
        for at, name in enumerate(graph.outputs) if name in why
    }  # fmt: skip
    return replace(graph, nodes=nodes, outputs=outputs), found


def _withheld(model: Model, assignment: Assignment) -> dict[str, str]:
    """Values that follow from more of the batch than a microbatch has, and the operation because of which they do."""
    found: dict[str, str] = {}
    if MICROBATCH_AXIS not in assignment.mesh.names:
        return found
    made = made_in(model, assignment)
    for node in model.graph.nodes:
        if node.target in (*SOURCES, "call") or node.results[0].name in model.live:
            continue
        needs = assignment.main.nodes[node.results[0].name].operands
        for name, need in zip(flat_operands(node), needs, strict=True):
            if name is None or need is None:
                continue
            if name not in found and (name in model.pure or not leaves_time(made[name], need)):
                continue
            found.update((value.name, found.get(name) or _called(node)) for value in node.results)
    return found


def _called(node: Node) -> str:
    return f"{node.target} ({node.source})" if node.source else node.target
