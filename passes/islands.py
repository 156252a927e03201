"""Warn of operations that no rule splits.

An island is priced as one pass over memory: its operands and results at the device's bandwidth, twice that
backward, in full on every device. That is the least it can cost; what its arithmetic costs beyond that only a
rule with ``flops``, or measured seconds in the cost profile, can tell.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from autopar.ir.errors import IslandWarning
from autopar.ir.graph import SOURCES, Node
from autopar.ir.optable import ISLAND, row
from autopar.passes.account import Work, compute_ns, work
from autopar.passes.assignment import Assignment
from autopar.passes.build import Model
from autopar.passes.positions import all_graphs
from autopar.passes.pricing import Pricing


@dataclass
class _Found:
    first: Node
    items: list[Work]


def warn_of_islands(model: Model, assignment: Assignment, pricing: Pricing, microbatches: int) -> None:
    """One IslandWarning an operation, with where it stands first and what to do; none on a single device."""
    nodes = (node for graph in all_graphs(model.graph) for node in graph.nodes)
    some = any(node.target not in (*SOURCES, "call") and row(node) is ISLAND for node in nodes)
    if pricing.cluster.world_size == 1 or not some:
        return
    items = list(work(model, assignment, pricing, microbatches))
    found: dict[str, _Found] = {}
    for item in items:
        if row(item.node) is ISLAND:
            found.setdefault(item.node.target, _Found(item.node, [])).items.append(item)
    total = compute_ns(items, pricing)
    for target, island in found.items():
        share = compute_ns(island.items, pricing) / max(total, 1)
        warnings.warn(_text(target, island.first, sum(i.backward_count for i in island.items), share), IslandWarning,
                      stacklevel=4)  # of whoever called ``plan`` or ``parallelize``  # fmt: skip


def _text(target: str, node: Node, count: int, share: float) -> str:
    where = f", first at {node.source}" if node.source else ""
    times = "once" if count == 1 else f"{count} times"
    return (
        f"{target} has no sharding rule, so every device does all of its work: {times} a step{where}; at least "
        f"{share:.1%} of the compute time. Say which dims may be split with autopar.register_rule({target!r}, RULE), "
        f"RULE such as '*b k, n k -> *b n'; 'replicated' keeps it whole without this warning"
    )
