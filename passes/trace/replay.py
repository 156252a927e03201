"""The part of an exported graph that a repeated call stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import fx

from autopar.passes.trace.instances import Instance
from autopar.passes.trace.repeats import MARK, UnrepeatableError


@dataclass(frozen=True, kw_only=True)
class Region:
    """What a leading call left in the graph of ``module``. ``outside``: nodes before it whose values it uses."""

    module: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    arguments: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    outside: tuple[fx.Node, ...]


def regions(module: fx.GraphModule) -> dict[int, Region]:
    """By site, what stands between two marks."""
    found = {}
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        nodes = list(part.graph.nodes)
        starts: dict[int, int] = {}
        for at, node in enumerate(nodes):
            if node.target is not MARK:
                continue
            site, end, tensors = node.args
            if not end:
                starts[site] = at
            elif site in starts:
                found[site] = _region(part, nodes[starts[site] : at], tensors)
    return found


def _region(module: fx.GraphModule, nodes: Sequence[fx.Node], results: Any) -> Region:
    start, *inner = nodes
    arguments: Any = start.args[2]
    within = set(inner)
    used = (item for node in inner for item in node.all_input_nodes)
    return Region(
        module=module, nodes=tuple(inner), arguments=tuple(arguments), results=tuple(results),
        outside=tuple(dict.fromkeys(item for item in used if item not in within)),
    )  # fmt: skip


@contextmanager
def standing_for(
    env: dict[fx.Node, Any],
    region: Region,
    tensors: Sequence[fx.Node],
    pair: tuple[Instance, Instance],
    places: Mapping[str, Sequence[fx.Node]],
    slots: Mapping[str, str],
) -> Iterator[None]:
    """Inside, what ``region`` uses has in ``env`` the values of the call with ``tensors``; afterwards its own again.

    ``pair``: the instance that leads and the one that repeats; ``places`` and ``slots``: by canonical name the
    placeholders of a tensor, if it has any, and its value. Raises UnrepeatableError if one value would have to be two.
    """
    values: dict[Any, Any] = {}
    given: dict[fx.Node, Any] = {}

    def put(old: Any, new: Any) -> None:
        if values.setdefault(old, new) != new:
            raise UnrepeatableError(f"{old} would be {values[old]} and {new}")

    for old, new in zip(region.arguments, tensors, strict=True):
        put(env[old], env[new])
    for mine, theirs in zip(pair[0].tensors, pair[1].tensors, strict=True):
        for place in places.get(mine, ()):
            given[place] = env[places[theirs][0]] if theirs in places else slots[theirs]
            put(env[place], given[place])
    for node in region.outside:
        if node in env:
            given[node] = values.get(env[node], env[node])
    before = {node: env[node] for node in (*given, *region.nodes) if node in env}
    env.update(given)
    try:
        yield
    finally:
        env.update(before)
