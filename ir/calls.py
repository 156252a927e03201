"""What calls return, and how one is cut into several.

The first ``carried`` outputs of a block enter its next call and leave as the results of the last one. Of what else it
returns, *collected*, the call returns that of every one of its ``count`` calls, call after call; or nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from autopar.ir.graph import Graph, Node, Value


def carried(call: Node) -> int:
    """How many values go from call to call."""
    return int(str(call.attr("carried")))


def collected(call: Node) -> tuple[tuple[Value, ...], ...]:
    """For each of the calls the results that are its own; empty ones where the call returns none."""
    own, count = call.results[carried(call) :], int(str(call.attr("count")))
    each = len(own) // count
    return tuple(own[at * each : (at + 1) * each] for at in range(count))


def returned(call: Node, block: Graph) -> Iterator[tuple[int, Value, str]]:
    """For each result the number of the call that gives it, the result, and which output of the block it is."""
    handed, last = carried(call), int(str(call.attr("count"))) - 1
    for value, name in zip(call.results[:handed], block.outputs[:handed], strict=True):
        yield last, value, name
    for at, own in enumerate(collected(call)):
        for value, name in zip(own, block.outputs[handed:], strict=bool(own)):
            yield at, value, name


def without_collected(call: Node) -> Node:
    """The call that returns what the last one hands on, and no more."""
    handed = carried(call)
    return call if len(call.results) == handed else replace(call, results=call.results[:handed])


def pieces(call: Node, counts: Sequence[int], mark: str) -> list[Node]:
    """The call as several, one after the other, of so many calls each. The last hands on values under the names of the
    whole, the others under theirs with ``mark`` and a number."""
    params, handed = call.attr("params"), carried(call)
    assert isinstance(params, tuple) and sum(counts) == len(params)
    own, current, done = collected(call), call.operands[:handed], 0
    made = []
    for index, count in enumerate(counts):
        results = call.results[:handed]
        if index < len(counts) - 1:
            results = tuple(replace(value, name=f"{value.name}{mark}{index}") for value in results)
        here = slice(done, done + count)
        piece = replace(call, results=(*results, *chain(*own[here])), operands=(*current, *call.operands[handed:]))
        made.append(piece.with_attrs(count=count, params=params[here]))
        current, done = tuple(value.name for value in results), done + count
    return made
