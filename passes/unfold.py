"""Write out the calls of a graph: the inverse of ``fold``."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.calls import carried, collected, pieces
from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node, renamed, sorted_attrs
from autopar.passes.order import canonical_form


def unfold(graph: Graph) -> Graph:
    """Replace each call by its instances.

    Requires: a verified graph. Ensures: no call and no block; parameters and buffers carry their names;
    the result is in canonical form. Raises: IRError if a block calls a block.
    """
    blocks = {block.name: block for block in graph.blocks}
    names: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.target == "call":
            _expand(node, blocks[str(node.attr("block"))], names, nodes)
        else:
            nodes.append(_renamed_all(node, names, f"{len(nodes)}"))
    outputs = tuple(names[name] for name in graph.outputs)
    return canonical_form(replace(graph, nodes=tuple(nodes), outputs=outputs, blocks=()))


def _expand(call: Node, block: Graph, names: dict[str, str], nodes: list[Node]) -> None:
    """Append the instances; afterwards ``names`` knows the results of the call."""
    params = call.attr("params")
    assert isinstance(params, tuple)
    entering, handed = [names[name] for name in call.uses()], carried(call)
    for fqns, own in zip(params, collected(call), strict=True):
        assert isinstance(fqns, tuple)
        inner: dict[str, str] = {}
        given = iter(entering)
        for node in block.nodes:
            if node.target == "call":
                raise IRError(f"@{block.name} calls @{node.attr('block')}: blocks call no blocks")
            if node.target == "input":
                inner[node.result.name] = next(given)
                continue
            slot = node.attr("slot") if node.target in ("param", "buffer") else None
            if isinstance(slot, int):
                attrs = {key: value for key, value in node.attrs if key != "slot"}
                node = replace(node, attrs=sorted_attrs({**attrs, "fqn": fqns[slot]}))
            nodes.append(_renamed_all(node, inner, f"{len(nodes)}"))
        leaving = [inner[name] for name in block.outputs]
        entering[:handed] = leaving[:handed]
        names.update((value.name, name) for value, name in zip(own, leaving[handed:], strict=False))
    names.update((value.name, name) for value, name in zip(call.results[:handed], entering, strict=False))


def _renamed_all(node: Node, names: dict[str, str], prefix: str) -> Node:
    """The node with its operands renamed and its results under new names, which ``names`` learns."""
    node = renamed(node, names)
    names.update((value.name, f"{prefix}.{at}") for at, value in enumerate(node.results))
    return replace(node, results=tuple(replace(value, name=names[value.name]) for value in node.results))


def apart(graph: Graph) -> Graph:
    """Every call as a block of its own, called once: nothing is shared, each instance is searched by itself.

    The units of overlap, ZeRO and recomputation stay the instances, as they are at run time, so the best plan
    costs what it costs folded.
    """
    nodes: list[Node] = []
    blocks: list[Graph] = []
    for node in graph.nodes:
        if node.target != "call":
            nodes.append(node)
            continue
        block, count = graph.block(str(node.attr("block"))), int(str(node.attr("count")))
        for index, call in enumerate(pieces(node, [1] * count, ".")):
            blocks.append(replace(block, name=f"{block.name}.{index}"))
            nodes.append(call.with_attrs(block=blocks[-1].name))
    return replace(graph, nodes=tuple(nodes), blocks=tuple(blocks))
