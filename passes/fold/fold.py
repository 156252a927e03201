"""Write the runs of a graph as blocks and calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from autopar.ir.graph import SOURCES, Graph, Node, Value, sorted_attrs
from autopar.ir.types import Attr
from autopar.passes.fold.lone import lone_runs
from autopar.passes.fold.run import Run
from autopar.passes.fold.search import find_runs, saved_nodes
from autopar.passes.fold.sequence import Sequence, sequence
from autopar.passes.order import canonical_form, walk


def fold(graph: Graph, *, loss: int | None = None, min_count: int = 2) -> Graph:
    """Replace chains of at least ``min_count`` isomorphic instances by one block and one call each.

    ``loss``: the output on which training depends, which no call collects: what is collected is only returned.

    Requires: a verified, canonical graph without layouts; what it has of calls is left as it is.
    Ensures: ``canonical_form(unfold(fold(g))) == canonical_form(g)``; the result is in canonical form
    and, names of parameters and inputs apart, the same for any order of independent nodes and any names.
    Blocks are ``block0``, ``block1``, … in the order of their calls.
    """
    inputs = graph.sources("input")
    reached = walk(graph.outputs, graph.producers())
    graph = replace(graph, nodes=(*inputs, *(node for node in reached if node.target != "input")))
    trained = None if loss is None else graph.outputs[loss]
    seq = sequence(graph, trained)
    runs = find_runs(seq, min_count)
    if 2 * saved_nodes(runs) < len(seq.nodes) or any(run.collected for run in runs):
        other = sequence(graph, trained, side_branches_first=True)
        found = find_runs(other, min_count)
        if saved_nodes(found) > saved_nodes(runs):
            seq, runs = other, found
    if not runs:
        return canonical_form(graph)
    parameters, given = ({node.result.name for node in graph.sources(kind)} for kind in ("param", "input"))
    runs = [*runs, *lone_runs(seq, runs, parameters, given)]
    producers = graph.producers()
    blocks: dict[str, Graph] = {}
    sources = {node.result.name: node for node in graph.nodes if node.target in SOURCES}
    rest: dict[int, Node] = dict(enumerate(seq.nodes))
    for run in runs:
        own = [_own(seq, run, instance, producers) for instance in range(run.count)]
        block, order = _block(seq, run, own[_middle(run)])
        params = tuple(tuple(str(row[i].attr("fqn")) for i in order) for row in own)
        name = f"at {run.start}"  # until the order of the calls is known
        blocks[name] = block
        for instance, row in zip(run.instances, own, strict=True):
            for at in instance:
                del rest[at]
            for node in row:
                del sources[node.result.name]
        rest[run.start] = _call(seq, run, name, params)
    nodes = (*sources.values(), *(node for _, node in sorted(rest.items(), key=lambda item: item[0])))
    return _named(canonical_form(replace(graph, nodes=nodes)), blocks)


def _own(seq: Sequence, run: Run, instance: int, producers: dict[str, Node]) -> list[Node]:
    """The nodes of an instance's own parameters and buffers, in the order of ``run.own``."""
    nodes = [seq.nodes[at] for at in run.instances[instance]]
    return [producers[list(nodes[index].uses())[operand]] for index, operand in run.own]


def _names(seq: Sequence, run: Run, instance: int) -> dict[int, str]:
    """Name behind each code that the instance uses."""
    nodes = run.instances[instance]
    return {code: name for at in nodes for code, name in zip(seq.refs[at], seq.nodes[at].uses(), strict=True)}


def _results(seq: Sequence, run: Run, instance: int, which: Iterable[tuple[int, int]]) -> list[Value]:
    """Values of the instance, such as those that it hands on."""
    nodes = run.instances[instance]
    return [seq.nodes[nodes[index]].results[result] for index, result in which]


def _middle(run: Run) -> int:
    """The instance that stands for all: the second, or the only one."""
    return min(1, run.count - 1)


def _block(seq: Sequence, run: Run, own: list[Node]) -> tuple[Graph, list[int]]:
    """An instance as a block, and the place in ``own`` of the parameter of each slot."""
    middle = _middle(run)
    names, types = _names(seq, run, middle), seq.types
    ahead = _results(seq, run, middle - 1, run.carried) if middle else []
    carried = [value.name for value in ahead] or [names[code] for code in run.carried.values()]
    entering = [*carried, *(names[code] for code in run.shared)]
    inputs = [
        Node(results=(Value(name, types[name]),), target="input", attrs=(("name", f"in{at}"),))
        for at, name in enumerate(entering)
    ]
    body = [seq.nodes[at] for at in run.instances[middle]]
    outputs = tuple(value.name for value in _results(seq, run, middle, (*run.carried, *run.collected)))
    block = canonical_form(Graph(name="", nodes=(*inputs, *own, *body), outputs=outputs))
    place = {node.attr("fqn"): at for at, node in enumerate(own)}
    order: list[int] = []
    nodes: list[Node] = []
    for node in block.nodes:
        if node.target in ("param", "buffer"):
            attrs = {key: value for key, value in node.attrs if key != "fqn"}
            nodes.append(replace(node, attrs=sorted_attrs({**attrs, "slot": len(order)})))
            order.append(place[node.attr("fqn")])
        else:
            nodes.append(node)
    return replace(block, nodes=tuple(nodes)), order


def _call(seq: Sequence, run: Run, block: str, params: tuple[Attr, ...]) -> Node:
    first, names = _names(seq, run, 0), _names(seq, run, _middle(run))
    results = _results(seq, run, run.count - 1, run.carried)
    for instance in range(run.count):
        for value in _results(seq, run, instance, run.collected):
            again = any(value.name == other.name for other in results)  # what the last one hands on, too
            results.append(replace(value, name=f"{value.name} collected") if again else value)
    return Node(
        results=tuple(results),
        target="call",
        operands=(*(first[code] for code in run.carried.values()), *(names[code] for code in run.shared)),
        attrs=sorted_attrs(
            {"block": block, "carried": len(run.carried), "count": run.count, "params": params}
        ),
    )


def _named(graph: Graph, blocks: dict[str, Graph]) -> Graph:
    """Blocks under their final names, in the order of their calls."""
    names = (f"block{at}" for at in count())
    taken = {block.name for block in graph.blocks}
    nodes: list[Node] = []
    added: list[Graph] = []
    for node in graph.nodes:
        block = blocks.get(str(node.attr("block"))) if node.target == "call" else None
        if block is not None:
            name = next(name for name in names if name not in taken)
            added.append(replace(block, name=name))
            node = node.with_attrs(block=name)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), blocks=(*graph.blocks, *added))
