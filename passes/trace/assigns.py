"""Writes to buffers as nodes of the graph: ``%y' = autopar.assign(%y, (%buffer, …), (%new, …))``.

The result is ``%y``; that the buffers hold the new values from then on is what happens besides. A write hangs
on a value that the loss needs, the first that the model computes after it, so that it lives as long as the loss
does and stands in the same repeated part: no later pass has to know that it is more than its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.ir.graph import ASSIGN, SOURCES, Node, Value, renamed
from autopar.ir.types import TensorType

DETACH = "autopar.detach"
_SAME = (DETACH, "aten.detach.default", "aten.clone.default", "aten.alias.default")


@dataclass(frozen=True, kw_only=True)
class Write:
    """The value ``buffer`` is overwritten with ``new``; both are values of the graph, of one type."""

    buffer: str
    new: str
    source: str = ""


def with_assigns(
    nodes: Sequence[Node], outputs: tuple[str, ...], loss: int | None, writes: Sequence[Write], learns: Collection[str]
) -> tuple[list[Node], tuple[str, ...]]:
    """The graph's nodes and outputs with every write in it.

    ``loss``: index of what is trained; without one the writes hang on the outputs. ``learns``: values through
    which a gradient reaches a parameter. A model that returns nothing writes nothing.
    """
    wanted = outputs if loss is None else (outputs[loss],)
    if not writes or not wanted:
        return list(nodes), outputs
    place = {value.name: at for at, node in enumerate(nodes) for value in node.results}
    types = {value.name: value.type for node in nodes for value in node.results}
    live = _needed(nodes, wanted)
    producers = {value.name: node for node in nodes for value in node.results}
    found: dict[str, list[Write]] = {}
    for given in writes:
        write = replace(given, new=_origin(given.new, producers))
        carrier = _carrier(nodes[place[write.new] :], live, learns) or wanted[0]
        found.setdefault(carrier, []).append(write)
    made: dict[int, list[Node]] = {}  # behind which node
    for carrier, group in found.items():
        at = max(place[name] for name in (carrier, *(write.new for write in group)))
        made.setdefault(at, []).extend(_assign(carrier, group, types, learns, set(types)))
    return _placed(nodes, outputs, made)


def _needed(nodes: Sequence[Node], wanted: Sequence[str]) -> set[str]:
    needed = set(wanted)
    for node in reversed(nodes):
        if any(value.name in needed for value in node.results):
            needed.update(node.uses())
    return needed


def _origin(name: str, producers: Mapping[str, Node]) -> str:
    """Where the value was computed: an assignment to an attribute is traced as a copy at the end of the forward."""
    while (node := producers[name]).target in _SAME:
        (name,) = node.uses()
    return name


def _carrier(nodes: Sequence[Node], live: Collection[str], learns: Collection[str]) -> str | None:
    """The first value with a gradient that the loss needs: masks and tables are for other passes to prove."""
    for node in nodes:
        for value in node.results if node.target not in SOURCES else ():
            if value.name in live and value.name in learns:
                return value.name
    return None


def _assign(
    carrier: str, writes: Sequence[Write], types: Mapping[str, TensorType], learns: Collection[str], taken: set[str]
) -> list[Node]:
    made, news = [], []
    for write in writes:
        new = write.new
        if new in learns:
            new = _fresh(f"{new}_detached", taken)
            value = Value(new, types[write.new])
            made.append(Node(results=(value,), target=DETACH, operands=(write.new,), source=write.source))
        news.append(new)
    result = Value(_fresh(f"{carrier}_assigned", taken), types[carrier])
    operands = (carrier, tuple(write.buffer for write in writes), tuple(news))
    return [*made, Node(results=(result,), target=ASSIGN, operands=operands, source=writes[0].source)]


def _placed(
    nodes: Sequence[Node], outputs: tuple[str, ...], made: Mapping[int, list[Node]]
) -> tuple[list[Node], tuple[str, ...]]:
    """Whoever comes after an assign uses its result."""
    kept: list[Node] = []
    names: dict[str, str] = {}
    for at, node in enumerate(nodes):
        kept.append(renamed(node, names))
        for added in made.get(at, ()):
            kept.append(renamed(added, names))
            if added.target == ASSIGN:
                names[str(added.operands[0])] = added.result.name
    return kept, tuple(names.get(name, name) for name in outputs)


def _fresh(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name
