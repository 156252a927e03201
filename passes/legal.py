"""Ways to place one node that rules, the user's constraints and the microbatches allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.ir.errors import InfeasibleError, UnsupportedError
from autopar.ir.graph import Graph, Node
from autopar.ir.program import MICROBATCH_AXIS
from autopar.passes.positions import flat_operands, node_key
from autopar.passes.strategies import NOTHING, Strategy

if TYPE_CHECKING:
    from autopar.passes.build import Model
    from autopar.passes.ground import Ground


def legal_strategies(
    model: Model, ground: Ground, graph: Graph, node: Node, microbatches: int
) -> tuple[Strategy, ...]:
    """Each node's worked out once a ``ground``. Raises UnsupportedError, InfeasibleError naming the node where there
    is none."""
    key, operands, mesh = node_key(graph, node), flat_operands(node), ground.pricing.mesh
    if key in ground.legal:
        return ground.legal[key]
    sums = model.rules[key].partial  # what takes no part of a sum need not know where there may be any
    partial = [ground.partial[graph.name, n] if n and sums else frozenset() for n in operands]
    legal = ground.strategies(key, tuple(partial))
    if not legal:
        raise UnsupportedError(f"{node.source or node.target}: no placement of {node.target} on mesh({mesh})")
    if _couples_batch(model, ground, graph, node, legal):
        raise UnsupportedError(
            f"{node.source or node.results[0].name}: {node.target} works across the batch, so a step cannot be "
            f"cut into {microbatches} microbatches; use num_microbatches=1, without pp"
        )
    demanded: list[str] = []
    for index, name in enumerate(operands):
        for constraint in ground.constrained.get((graph.name, name or ""), ()):
            legal = tuple(c for c in legal if (at := c.operands[index]) is not None and constraint.allows(at))
            demanded.append(str(constraint))
            if not legal:
                raise InfeasibleError(
                    f"{' and '.join(demanded)}: no placement is left of {node.target} at {node.source} on "
                    f"mesh({mesh})",
                    details={"conflict": demanded},
                )
    ground.legal[key] = legal
    return legal


def _couples_batch(
    model: Model, ground: Ground, graph: Graph, node: Node, legal: tuple[Strategy, ...]
) -> bool:  # fmt: skip
    """Whether a node that depends on parameters needs the batch whole although there are microbatches."""
    mesh = ground.pricing.mesh
    if MICROBATCH_AXIS not in mesh.names or model.facts[graph.name, node.results[0].name].pure:
        return False
    at = mesh.index(MICROBATCH_AXIS)
    return all(chosen.choices[at] == NOTHING for chosen in legal) and any(
        name is not None and ground.found.has(graph.name, name, "batch") for name in flat_operands(node)
    )
