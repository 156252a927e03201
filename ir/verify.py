"""Check the invariants of a graph, after every pass.

main graph and each block
  every value is named once and defined before its uses; outputs exist                       (1)
  attributes are sorted, named once and of the kinds of ``Attr``                              (2)
  a layout is one of the graph's mesh and fits the shape                                      (3)
  sources have one result and no operand; in a block, slots count up from 0                   (4)
assigns
  write buffers as they are stored, each once, with new values of the same type               (5)
calls
  name a block; operands are its inputs, the carried ones alike, results its outputs          (6)
  ``params`` fills each slot of each of the ``count`` calls                                   (7)
  a parameter, buffer or constant is named once: by a node or by one slot of one call         (8)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from autopar.ir.calls import returned
from autopar.ir.errors import IRError
from autopar.ir.graph import ASSIGN, SOURCES, Graph, Node, Value
from autopar.ir.text import print_node
from autopar.ir.types import Attr, TensorType


def verify(graph: Graph, *, after: str = "") -> None:
    """Raise IRError at the first broken invariant.

    ``after``: the pass that made the graph. The message names it and shows the node.
    """
    names = [block.name for block in graph.blocks]
    if len(set(names)) != len(names):
        raise IRError(f"{_where(after, graph)}: two blocks have the same name: {', '.join(names)}")
    blocks = {block.name: block for block in graph.blocks}
    for block in graph.blocks:
        if block.blocks:
            raise IRError(f"{_where(after, block)}: blocks hold no blocks")
        _verify_one(block, {}, after, inside=True)
    _verify_one(graph, blocks, after, inside=False)


def _verify_one(graph: Graph, blocks: dict[str, Graph], after: str, *, inside: bool) -> None:
    types: dict[str, TensorType] = {}
    stored: set[str] = set()
    written: set[str] = set()
    slots = 0
    for node in graph.nodes:
        for problem in _problems(graph, node, types, inside):
            raise _broken(after, graph, node, problem)
        for problem in _assign_problems(graph, node, types, written) if node.target == ASSIGN else ():
            raise _broken(after, graph, node, problem)
        if node.target in ("param", "buffer") and inside:
            if node.attr("slot") != slots:
                raise _broken(after, graph, node, f"slots are numbered in order: slot={slots} is next")
            slots += 1
        for problem in _call_problems(node, types, blocks) if node.target == "call" else ():
            raise _broken(after, graph, node, problem)
        for fqn in _stored_names(node):
            if fqn in stored:
                raise _broken(after, graph, node, f'"{fqn}" already stands in the graph')
            stored.add(fqn)
        types.update((value.name, value.type) for value in node.results)
    for name in graph.outputs:
        if name not in types:
            raise IRError(f"{_where(after, graph)}: output %{name} is not defined\n  return %{name}")


def _problems(graph: Graph, node: Node, types: dict[str, TensorType], inside: bool) -> Iterator[str]:
    for name in node.uses():
        if name not in types:
            yield f"operand %{name} is not defined before this node"
    names = [value.name for value in node.results]
    for at, name in enumerate(names):
        if name in types or name in names[:at]:
            yield f"%{name} is defined twice"
    keys = [key for key, _ in node.attrs]
    if any(a >= b for a, b in itertools.pairwise(keys)):
        yield f"attributes are sorted and named once, not {', '.join(keys)}"
    for key, value in node.attrs:
        if not _is_attr(value):
            yield f"attribute {key} holds {value!r}; allowed: none, bool, int, float, str, tuples of them"
    for result in node.results:
        yield from _layout_problems(graph, result)
    if node.target in SOURCES:
        if len(node.results) != 1 or node.operands:
            yield f"{node.target} has one result and no operand"
        yield from _source_problems(node, inside)


def _source_problems(node: Node, inside: bool) -> Iterator[str]:
    key = "name" if node.target == "input" else "fqn"
    if inside and node.target in ("param", "buffer"):
        if isinstance(node.attr("slot"), bool) or not isinstance(node.attr("slot"), int):
            yield f"{node.target} of a block needs slot=0, 1, …"
    elif not isinstance(node.attr(key), str):
        yield f'{node.target} needs {key}="…"'


def _layout_problems(graph: Graph, value: Value) -> Iterator[str]:
    if value.layout is None:
        return
    if value.layout.mesh != graph.mesh:
        other = value.layout.mesh
        yield f"the layout of %{value.name} is of mesh({other}), the graph's is mesh({graph.mesh})"
    elif problem := value.layout.problem(value.type.shape):
        yield f"the layout of %{value.name}: {problem}"


def _call_problems(node: Node, types: dict[str, TensorType], blocks: dict[str, Graph]) -> Iterator[str]:
    block = blocks.get(str(node.attr("block")))
    if block is None:
        yield f"no block @{node.attr('block')}; there are: {', '.join(blocks) or 'none'}"
        return
    count, carried, params = node.attr("count"), node.attr("carried"), node.attr("params")
    if (
        not isinstance(count, int)
        or count < 1
        or not isinstance(carried, int)
        or not isinstance(params, tuple)
    ):
        yield "call needs count ≥ 1, carried ≥ 0 and params=((fqn, …), …)"
        return
    given: list[TensorType] = []
    for operand in node.operands:
        if not isinstance(operand, str):
            yield "operands of a call are values, not lists and not none"
            return
        given.append(types[operand])
    values = block.values()
    inputs = [item.results[0].type for item in block.sources("input")]
    outputs = [values[name].type for name in block.outputs]
    if len(node.results) not in (carried, carried + count * (len(outputs) - carried)) or carried > len(outputs):
        found = f"@{block.name} returns {len(outputs)} and the call {len(node.results)} values"
        yield f"carried={carried}, but {found}"
        return
    yield from _type_problems(f"operands of the call and inputs of @{block.name}", given, inputs)
    results = [value.type for value in node.results]
    made = [values[name].type for _, _, name in returned(node, block)]
    yield from _type_problems(f"results of the call and outputs of @{block.name}", results, made)
    yield from _type_problems(f"carried inputs and outputs of @{block.name}", inputs[:carried], outputs[:carried])
    slots = sum(item.target in ("param", "buffer") for item in block.nodes)
    if len(params) != count:
        yield f"params names {len(params)} calls, count={count}"
    for at, fqns in enumerate(params):
        if not isinstance(fqns, tuple) or len(fqns) != slots or not all(isinstance(fqn, str) for fqn in fqns):
            yield f"params of call {at} do not fill the {slots} slots of @{block.name}: {fqns!r}"


def _assign_problems(
    graph: Graph, node: Node, types: dict[str, TensorType], written: set[str]
) -> Iterator[str]:
    if len(node.operands) != 3 or not all(isinstance(operand, tuple) for operand in node.operands[1:]):
        yield f"{ASSIGN} has a value, a list of buffers and a list of new values"
        return
    buffers, news = node.operands[1:]
    assert isinstance(buffers, tuple) and isinstance(news, tuple)
    stored = {source.result.name for source in graph.sources("buffer")}
    for name in buffers:
        if name not in stored:
            yield f"%{name} is no buffer as it is stored: only that can be written"
        elif name in written:
            yield f"%{name} is written twice"
        else:
            written.add(name)
    yield from _type_problems(
        "buffers and their new values", [types[name or ""] for name in buffers], [types[name or ""] for name in news]
    )


def _type_problems(what: str, found: Sequence[TensorType], wanted: Sequence[TensorType]) -> Iterator[str]:
    if list(found) != list(wanted):
        yield f"{what} differ: {', '.join(map(str, found))} and {', '.join(map(str, wanted))}"


def _stored_names(node: Node) -> Iterator[str]:
    if node.target in SOURCES and node.target != "input":
        fqn = node.attr("fqn")
        if isinstance(fqn, str):
            yield fqn
    elif node.target == "call":
        params = node.attr("params")
        assert isinstance(params, tuple)
        for fqns in params:
            assert isinstance(fqns, tuple)
            yield from (str(fqn) for fqn in fqns)


def _is_attr(value: Attr) -> bool:
    if isinstance(value, tuple):
        return all(_is_attr(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _where(after: str, graph: Graph) -> str:
    return f"after {after}: @{graph.name}" if after else f"@{graph.name}"


def _broken(after: str, graph: Graph, node: Node, problem: str) -> IRError:
    return IRError(f"{_where(after, graph)}: a broken node\n  {print_node(node)}\n  ^ {problem}")
