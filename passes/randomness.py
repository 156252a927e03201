"""Operations that draw random numbers: torch's generator draws in sequence, so shards cannot draw alike."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Graph, Node

ALWAYS = (
    "aten.bernoulli", "aten.rand", "aten.randn", "aten.randint", "aten.randperm", "aten.multinomial", "aten.normal",
    "aten.rand_like", "aten.randn_like", "aten.uniform", "aten.exponential", "aten.poisson", "aten.rrelu",
    "aten.alpha_dropout", "aten.feature_dropout", "aten.feature_alpha_dropout",
)  # fmt: skip


def draws(node: Node) -> bool:
    """Whether the node draws random numbers. Canonical graphs hold no dropout with p = 0."""
    packet = ".".join(node.target.split(".")[:2])
    if packet in ("aten.dropout", "aten.native_dropout"):
        return True
    return packet in ALWAYS or bool(node.attr("dropout_p", 0.0))


def random_nodes(graph: Graph) -> Iterator[Node]:
    for part in (*graph.blocks, graph):
        yield from (node for node in part.nodes if draws(node))


def refuse_random(graph: Graph) -> None:
    """Raise UnsupportedError naming the first operation that draws, for a run on several devices."""
    node = next(random_nodes(graph), None)
    if node is not None:
        raise UnsupportedError(
            f"{node.source or node.results[0].name}: {node.target} draws random numbers, which several devices "
            "cannot draw as one would; set its probability to 0, or train on one device"
        )
