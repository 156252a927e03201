"""The canonical form of a graph: one order of nodes and one set of names, whatever they were before.

Nodes stand where a depth-first walk from the outputs leaves them, operands in order; ahead of them the
inputs as given, then the other sources by first use. So the form follows from structure alone: neither
the order of independent nodes nor the name of a value has a part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, count

from autopar.ir.calls import carried
from autopar.ir.graph import SOURCES, Graph, Node, Value, map_operand


def canonical_form(graph: Graph) -> Graph:
    """Nodes in canonical order, values named ``0``, ``1``, … in that order, blocks likewise; what a call collects has
    its name and a number, so that all others' names are the same however often the block is called.

    Requires: a verified graph. Ensures: inputs keep their order; nodes that no output needs are gone,
    inputs excepted; two graphs that differ in the order of independent nodes, in the names of values and
    in ``Node.source`` have equal forms; ``canonical_form`` of the result is the result.
    """
    producers = graph.producers()
    rest = [node for node in walk(graph.outputs, producers) if node.target not in SOURCES]
    uses = dict.fromkeys(chain(chain.from_iterable(node.uses() for node in rest), graph.outputs))
    used = [producers[name] for name in uses]
    stored = [node for node in used if node.target in SOURCES and node.target != "input"]
    names: dict[str, str] = {}
    number = count()
    nodes = [_numbered(node, names, number) for node in (*graph.sources("input"), *stored, *rest)]
    return replace(
        graph,
        nodes=tuple(nodes),
        outputs=tuple(names[name] for name in graph.outputs),
        blocks=tuple(canonical_form(block) for block in graph.blocks),
    )


def walk(outputs: Iterable[str], producers: dict[str, Node]) -> list[Node]:
    """Nodes that ``outputs`` need, each after its operands, in depth-first order.

    Values that ``producers`` lacks are taken as given.
    """
    order: list[Node] = []
    seen: set[str] = set()  # first results
    stack: list[tuple[Node, bool]] = []

    def push(names: Iterable[str]) -> None:
        found = [producers[name] for name in names if name in producers]
        stack.extend((node, False) for node in reversed(found) if node.results[0].name not in seen)

    push(outputs)
    while stack:
        node, left = stack.pop()
        first = node.results[0].name
        if left:
            order.append(node)
        elif first not in seen:
            seen.add(first)
            stack.append((node, True))
            push(node.uses())
    return order


def _numbered(node: Node, names: dict[str, str], number: Iterator[int]) -> Node:
    operands = tuple(map_operand(operand, names) for operand in node.operands)
    own = carried(node) if node.target == "call" else len(node.results)
    results: list[Value] = []
    for at, value in enumerate(node.results):
        names[value.name] = name = str(next(number)) if at < own else f"{results[0].name}.of{at - own}"
        results.append(Value(name, value.type, value.layout))
    return Node(
        results=tuple(results), target=node.target, operands=operands, attrs=node.attrs, source=node.source
    )
