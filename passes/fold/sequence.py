"""The operations of a graph in one order, as numbers that are quick to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.types import TensorType
from autopar.passes.fold.orders import Edges, deepest_first, nearest_first


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequence:
    """Operations in a canonical order, and what is known of each position.

    ``labels``: equal for nodes with the same target, attributes, types and shape of operand list.
    ``refs``: for each node the values it uses, as codes: result ``i`` of the node at position ``p`` is
    ``p · stride + 2i``; a parameter or buffer first used at position ``p`` as operand ``i`` is
    ``p · stride + 2i + 1``; all other values are negative.
    ``relative``: ``refs`` less ``p · stride``, then the signatures of the parameters among them; equal
    for two nodes whose operands are shifted by exactly the distance of the nodes.
    ``last_use``: position of the last user of each code ≥ 0, the number of nodes for the loss. ``returned``: codes of
    what else the graph returns.
    ``reach``: the last use of any result of each node, 0 if there is none.
    ``use_count``: operands and outputs that each code fills.
    ``signature``: of each parameter; equal if target, type, attributes other than its name and the
    pattern of its uses are. ``types``: by name of value.
    """

    nodes: tuple[Node, ...]
    labels: tuple[int, ...]
    refs: tuple[tuple[int, ...], ...]
    relative: tuple[tuple[int, ...], ...]
    stride: int
    last_use: dict[int, int]
    returned: frozenset[int]
    reach: tuple[int, ...]
    use_count: Counter[int]
    signature: dict[int, int]
    types: dict[str, TensorType]

    def shifted(self, code: int, other: int, distance: int) -> bool:
        """Whether ``other`` stands for the same value as ``code``, ``distance`` nodes further on."""
        if code < 0 or other - code != distance * self.stride:
            return False
        return code % 2 == 0 or self.signature[code] == self.signature[other]


def sequence(graph: Graph, loss: str | None = None, *, side_branches_first: bool = False) -> Sequence:
    """Requires: a verified graph without dead nodes, inputs excepted. For the two orders see ``orders``."""
    types = {value.name: value.type for node in graph.nodes for value in node.results}
    unordered = [node for node in graph.nodes if node.target not in SOURCES]
    kinds = _kinds(types)
    numbers = _Numbers()
    unordered_labels = [numbers.of(_label(node, kinds)) for node in unordered]
    edges = Edges.of(unordered, graph.outputs)
    order = deepest_first(edges, numbers.ranks(unordered_labels))
    if side_branches_first:
        order = nearest_first(edges, order, unordered_labels)
    nodes = tuple(unordered[at] for at in order)
    width = max((len(node.results) for node in nodes), default=1)
    uses = [tuple(node.uses()) for node in nodes]
    stride = 2 * max([width, *map(len, uses)])
    codes = {
        value.name: at * stride + 2 * index
        for at, node in enumerate(nodes)
        for index, value in enumerate(node.results)
    }
    signatures = _parameters(graph, uses, stride, codes)
    for name in kinds:
        codes.setdefault(name, -1 - len(codes))
    refs = [tuple(codes[name] for name in names) for names in uses]
    last_use = {code: at for at, row in enumerate(refs) for code in row}
    if loss is not None:
        last_use[codes[loss]] = len(nodes)
    use_count = Counter(chain(chain.from_iterable(refs), (codes[name] for name in graph.outputs)))
    relative = [
        (
            *(code - at * stride if code >= 0 else code for code in row),
            *(signatures[code] for code in row if code in signatures),
        )
        for at, row in enumerate(refs)
    ]
    return Sequence(
        nodes=nodes,
        labels=tuple(unordered_labels[at] for at in order),
        refs=tuple(refs),
        relative=tuple(relative),
        stride=stride,
        last_use=last_use,
        returned=frozenset(codes[name] for name in graph.outputs if name != loss),
        reach=tuple(
            max(last_use.get(at * stride + 2 * index, 0) for index in range(len(node.results)))
            for at, node in enumerate(nodes)
        ),
        use_count=use_count,
        signature=signatures,
        types=types,
    )


def _kinds(types: dict[str, TensorType]) -> dict[str, int]:
    """A number for the type of each value: its place among all types, sorted by their text."""
    numbers = _Numbers()
    return dict(zip(types, numbers.ranks([numbers.of(type_) for type_ in types.values()]), strict=True))


class _Numbers:
    """A number for each distinct key, in order of first sight."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def of(self, key: object) -> int:
        return self._known.setdefault(key, len(self._known))

    def ranks(self, numbers: Iterable[int]) -> list[int]:
        """The place of each number's key among all keys, sorted by their text."""
        place = {
            number: at for at, (_, number) in enumerate(sorted((repr(k), n) for k, n in self._known.items()))
        }
        return [place[number] for number in numbers]


def _label(node: Node, kinds: dict[str, int]) -> object:
    """``repr`` of the attributes tells 1 from 1.0 and True."""
    operands = tuple(
        tuple(None if name is None else kinds[name] for name in operand)
        if isinstance(operand, tuple)
        else None if operand is None else kinds[operand]
        for operand in node.operands
    )  # fmt: skip
    results = tuple(kinds[value.name] for value in node.results)
    return node.target, repr(node.attrs) if node.attrs else "", results, operands


def _parameters(
    graph: Graph, uses: Iterable[tuple[str, ...]], stride: int, codes: dict[str, int]
) -> dict[int, int]:
    """Give parameters and buffers their codes, and return their signatures.

    One that the graph returns belongs to no instance and gets none.
    """
    stored = {node.result.name: node for node in graph.nodes if node.target in ("param", "buffer")}
    for name in graph.outputs:
        stored.pop(name, None)
    places: dict[str, list[tuple[int, int]]] = {}
    for at, names in enumerate(uses):
        for index, name in enumerate(names):
            if name in stored:
                places.setdefault(name, []).append((at, index))
    numbers = _Numbers()
    signatures = {}
    for name, found in places.items():
        first, index = found[0]
        pattern = tuple((at - first, slot) for at, slot in found)
        codes[name] = first * stride + 2 * index + 1
        signatures[codes[name]] = numbers.of((_stored_kind(stored[name]), pattern))
    return signatures


def _stored_kind(node: Node) -> tuple[str, TensorType, str]:
    return node.target, node.result.type, repr([(key, value) for key, value in node.attrs if key != "fqn"])
