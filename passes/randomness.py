"""Draws are numbered, so that each has random numbers of its own; what cannot be drawn is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.calls import carried
from autopar.ir.errors import UnsupportedError
from autopar.ir.graph import Graph, Node, Value
from autopar.ir.program import RNG_INPUT

DRAWS = ("autopar.dropout", "autopar.uniform", "autopar.normal", "autopar.sdpa_dropout")
# Operations of torch that draw; those that ``passes/draws.py`` knows are gone from a graph.
TORCH_DRAWS = (
    "aten.bernoulli", "aten.rand", "aten.randn", "aten.randint", "aten.randperm", "aten.multinomial", "aten.normal",
    "aten.rand_like", "aten.randn_like", "aten.randint_like", "aten.uniform", "aten.exponential", "aten.poisson",
    "aten.rrelu", "aten.rrelu_with_noise", "aten.geometric", "aten.cauchy", "aten.log_normal", "aten.random",
    "aten.binomial", "aten.dropout", "aten.native_dropout", "aten.alpha_dropout", "aten.feature_dropout",
    "aten.feature_alpha_dropout", "aten.normal_functional", "aten.log_normal_functional",
)  # fmt: skip


def number_draws(graph: Graph) -> Graph:
    """Give every draw its number: attribute ``site``, counted from the state of ``autopar.rng`` that it takes.

    Requires: a folded graph whose draws all take the input ``autopar.rng``. Ensures: no two draws of a step
    have the same number, whatever the plan. A block carries the state through its instances, each of which
    advances it by the draws that it makes; a call starts from the number of draws ahead of it.
    """
    entry = next((node for node in graph.sources("input") if node.attr("name") == RNG_INPUT), None)
    if entry is None:
        return graph
    state = entry.result
    blocks = {block.name: block for block in graph.blocks}
    draws: dict[str, int] = {}
    nodes: list[Node] = []
    done = 0
    for node in graph.nodes:
        if node.target in DRAWS:
            nodes.append(node.with_attrs(site=done))
            done += 1
        elif node.target == "call" and state.name in node.uses():
            name, at = str(node.attr("block")), list(node.uses()).index(state.name)
            if name not in draws:
                blocks[name], draws[name] = _counting(blocks[name], at, carried(node))
            begin = Value(f"{state.name}_{done}", state.type)
            nodes += [_advance(state.name, begin, done), _carrying(node, at, begin)]
            done += draws[name] * len(_instances(node))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), blocks=tuple(blocks[block.name] for block in graph.blocks))


def _advance(state: str, result: Value, by: int) -> Node:
    return Node(results=(result,), target="autopar.advance", operands=(state,), attrs=(("by", by),))


def _instances(call: Node) -> tuple[object, ...]:
    params = call.attr("params")
    assert isinstance(params, tuple)
    return params


def _counting(block: Graph, at: int, handed: int) -> tuple[Graph, int]:
    """The block with its input ``at``, the state, as the last carried one; and how often it draws."""
    inputs = list(block.sources("input"))
    state = inputs.pop(at)
    inputs.insert(handed, state)
    inputs = [node.with_attrs(name=f"in{i}") for i, node in enumerate(inputs)]
    nodes: list[Node] = []
    done = 0
    for node in block.nodes:
        if node.target in DRAWS:
            nodes.append(node.with_attrs(site=done))
            done += 1
        elif node.target != "input":
            nodes.append(node)
    after = Value(f"{state.result.name}.after", state.result.type)
    nodes.append(_advance(state.result.name, after, done))
    outputs = (*block.outputs[:handed], after.name, *block.outputs[handed:])
    return replace(block, nodes=(*inputs, *nodes), outputs=outputs), done


def _carrying(call: Node, at: int, begin: Value) -> Node:
    """The call with its operand ``at``, the state, as the last carried one."""
    handed = carried(call)
    operands = [operand for index, operand in enumerate(call.operands) if index != at]
    operands.insert(handed, begin.name)
    results = (*call.results[:handed], replace(begin, name=f"{begin.name}.after"), *call.results[handed:])
    return replace(call, operands=tuple(operands), results=results).with_attrs(carried=handed + 1)


def drawn_by_torch(node: Node) -> bool:
    """Whether the node draws random numbers from torch's generator."""
    return ".".join(node.target.split(".")[:2]) in TORCH_DRAWS or (
        node.target.startswith("aten.") and bool(node.attr("dropout_p", 0.0))
    )


def random_nodes(graph: Graph) -> Iterator[Node]:
    for part in (*graph.blocks, graph):
        yield from (node for node in part.nodes if drawn_by_torch(node))


def refuse_random(graph: Graph) -> None:
    """Raise UnsupportedError naming the first draw of torch's, for a run on several devices."""
    node = next(random_nodes(graph), None)
    if node is not None:
        raise UnsupportedError(
            f"{node.source or node.results[0].name}: {node.target} draws random numbers in sequence, which several "
            "devices cannot draw as one would; draw with torch.rand, randn, randint, bernoulli or a dropout "
            "instead, or train on one device"
        )
