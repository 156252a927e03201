"""What cannot be cut into microbatches, told by the node that forbids it.

No value crosses microbatches but the loss and what depends on the inputs alone: a sum over the batch that the
model itself goes on with (a batch norm, a contrastive loss) has no meaning for a part of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import ASSIGN, Graph, Node, assigned
from autopar.ir.layout import Layout
from autopar.ir.program import MICROBATCH_AXIS


def refuse_writes(graph: Graph, microbatches: int) -> None:
    """Raise UnsupportedError if the graph changes a buffer: each microbatch would change it again."""
    for part in (*graph.blocks, graph):
        for node in part.nodes:
            if node.target == ASSIGN:
                name = _name(graph, part, part.producers()[assigned(node)[0][0]])
                raise UnsupportedError(
                    f"the forward changes the buffer {name}, which happens once a step, so a step cannot be cut into "
                    f"{microbatches} microbatches; use num_microbatches=1, without pp"
                )


def _name(graph: Graph, part: Graph, buffer: Node) -> str:
    """The buffer's name, inside a block that of the first call."""
    slot = buffer.attr("slot")
    if not isinstance(slot, int):
        return str(buffer.attr("fqn"))
    call = next(node for node in graph.nodes if node.target == "call" and node.attr("block") == part.name)
    params = call.attr("params")
    assert isinstance(params, tuple) and isinstance(params[0], tuple)
    return str(params[0][slot])


def refuse_crossing(have: Sequence[Layout], needs: Sequence[Layout], consumer: Node, microbatches: int) -> None:
    """Raise UnsupportedError naming ``consumer`` if it needs more of a value than a microbatch has of it."""
    if not {layout[MICROBATCH_AXIS] for layout in have}.isdisjoint(need[MICROBATCH_AXIS] for need in needs):
        return
    raise UnsupportedError(
        f"{consumer.source or consumer.results[0].name}: {consumer.target} works across the batch, so a step cannot be "
        f"cut into {microbatches} microbatches; use num_microbatches=1, without pp"
    )
