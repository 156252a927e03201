"""What selective recomputation keeps of a lowered block.

A block that is recomputed keeps what came into it. *Selective* keeps besides what is expensive to make again, the
results of ``EXPENSIVE`` operations and of collectives: neither runs a second time. Of these, a result that only
collectives read, or that only leaves the block, is not kept either: nothing that does run again needs it.
"""

from __future__ import annotations

from autopar.ir.convert import COLLECTIVES
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.optable import local_row

EXPENSIVE = ("matmul", "attention", "conv")


def is_expensive(node: Node) -> bool:
    """Whether selective recomputation runs an operation once only."""
    return node.target not in (*SOURCES, "call") and not is_comm(node) and local_row(node).op_class in EXPENSIVE


def is_comm(node: Node) -> bool:
    return node.target.startswith("comm.")


def communicates(node: Node) -> bool:
    """Whether the node is a collective that the program itself does."""
    kind = node.target.removeprefix("comm.")
    return is_comm(node) and kind in COLLECTIVES and node.attr("owner") != "runtime"


def once(block: Graph) -> dict[str, bool]:
    """First results of the nodes of a lowered block that run once, and whether their results are kept."""
    read = {name for node in block.nodes if not communicates(node) for name in node.uses()}
    return {
        node.results[0].name: any(value.name in read for value in node.results) or _keeps_own(node)
        for node in block.nodes
        if communicates(node) or is_expensive(node)
    }


def _keeps_own(node: Node) -> bool:
    """Whether the operation's own backward pass reads its result, or what it made on the way there."""
    return not is_comm(node) and (local_row(node).keeps("r") or bool(local_row(node).inner))
