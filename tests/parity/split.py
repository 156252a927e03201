"""Was the work really split? Read off the lowered program alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autopar.ir.graph import Graph, Node, Value
from autopar.ir.layout import Layout, Shard
from autopar.ir.program import Program
from autopar.ir.types import DTYPE_BYTES
from tests.parity.planned import Planned

PRODUCTS = (
    "aten.linear.default",
    "aten.matmul.default",
    "aten.convolution.default",
    "aten.scaled_dot_product_attention.default",
    "autopar.sdpa_rows",
    "autopar.experts",
    "autopar.delta_rule",
)


def product_flops(node: Node, types: dict[str, Value]) -> int:
    """Forward FLOPs of a matrix product over *global* shapes."""
    shapes = [types[name].type.shape for name in node.uses()]
    if node.target == "autopar.experts":
        rows = math.prod(shapes[1])
        return 2 * rows * (math.prod(shapes[3][1:]) + math.prod(shapes[4][1:]))
    if node.target == "autopar.delta_rule":
        return 6 * node.result.type.numel * shapes[0][-1]
    if "sdpa" in node.target or "scaled_dot" in node.target:
        *batch, rows, depth = shapes[0]
        return 4 * math.prod(batch) * rows * shapes[1][-2] * depth
    if node.target == "aten.convolution.default":
        counted = shapes[0] if node.attr("transposed") else node.result.type.shape
        return 2 * math.prod(counted) * math.prod(shapes[1][1:])
    return 2 * node.result.type.numel * shapes[0][-1]


def runs(program: Program) -> Iterator[tuple[Graph, int]]:
    """Each graph and how often it runs in a microbatch."""
    yield program.graph, 1
    for node in program.graph.nodes:
        if node.target == "call":
            yield program.graph.block(str(node.attr("block"))), int(str(node.attr("count")))


def split_share(program: Program, axis: str) -> float:
    """Share of all matrix-product FLOPs of which each device of ``axis`` does a part.

    A product is split where the axis shards one of its operands.
    """
    total = split = 0
    for graph, count in runs(program):
        types = graph.values()
        for node in graph.nodes:
            if node.target in PRODUCTS:
                flops = count * product_flops(node, types)
                total += flops
                if any(_shards(types[name].layout, axis) for name in node.uses()):
                    split += flops
    return split / total


def _shards(layout: Layout | None, axis: str) -> bool:
    return layout is not None and isinstance(layout[axis], Shard)


def may_split(plan: Planned, axis: str) -> set[str]:
    """Parameters that could be stored in parts on ``axis``."""
    found = set()
    slots = {
        (str(call.attr("block")), index): [str(names[index]) for names in call.attr("params")]  # type: ignore[index,union-attr]
        for call in plan.model.graph.nodes if call.target == "call"
        for index in range(len(call.attr("params")[0]))  # type: ignore[index,arg-type]
    }  # fmt: skip
    for graph in (plan.model.graph, *plan.model.graph.blocks):
        domains = {v.name: v.values for v in plan.encoded.variables[graph.name] if v.kind == "source"}
        for node in graph.sources("param"):
            if any(
                isinstance(layout, Layout) and _shards(layout, axis) for layout in domains.get(node.result.name, ())
            ):
                slot = node.attr("slot")
                found.update(slots[graph.name, slot] if isinstance(slot, int) else [str(node.attr("fqn"))])
    return found


def stored_share(plan: Planned, axis: str) -> float:
    """Bytes that one device of ``axis`` keeps of the parameters it may split, of their whole bytes."""
    names = may_split(plan, axis)
    whole = kept = 0
    for p in plan.program.parameters:
        if p.fqn in names:
            size = p.type.numel * DTYPE_BYTES[p.type.dtype]
            whole += size
            kept += size // (p.layout.mesh.size(axis) if _shards(p.layout, axis) else 1)
    return kept / whole
