"""Orders in which the instances of a repeated part stand one after the other, alike.

``deepest_first`` goes from the outputs backward. Of the nodes all of whose users are placed, it takes the
one that lies deepest in the post-dominator tree: a branch is finished before the value from which it
forked, and values that many instances share come after all of them, so that in forward order they stand
ahead. Ties go to the smaller subtree, to the lesser kind of node and of its producers, to the latest
placed user and the operand it fills there.

``nearest_first`` goes forward. Of the nodes all of whose operands are placed, it takes the one nearest
to the outputs, so that a side branch of every instance (a loss that is summed up along the layers) is
not put off until after the last. Ties go to the other order. Kinds of nodes that are rare are put off: what is made of
that sum in the end has no counterpart in the other instances.

Depth and distance differ by the same amount between corresponding nodes of two instances, all else not at
all, and names have no part in it: corresponding parts get the same order, whatever the order of the graph.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.ir.graph import Node

SINK = -1
COMMON = 3  # nodes of a kind


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Nodes are numbers in topological order.

    ``needs``: producers of each node's operands -> the first operand that each fills; ``returned`` alike
    for the outputs of the graph; ``users``: of each node, with ``SINK`` for the outputs.
    """

    needs: list[dict[int, int]]
    returned: dict[int, int]
    users: list[list[int]]

    @classmethod
    def of(cls, nodes: Sequence[Node], outputs: Sequence[str]) -> Edges:
        index = {value.name: at for at, node in enumerate(nodes) for value in node.results}
        needs = []
        for node in nodes:
            row: dict[int, int] = {}
            for operand, name in enumerate(node.uses()):
                if name in index:
                    row.setdefault(index[name], operand)
            needs.append(row)
        returned: dict[int, int] = {}
        for operand, name in enumerate(outputs):
            if name in index:
                returned.setdefault(index[name], operand)
        users: list[list[int]] = [[] for _ in nodes]
        for at, row in enumerate(needs):
            for producer in row:
                users[producer].append(at)
        for producer in returned:
            users[producer].append(SINK)
        return cls(needs=needs, returned=returned, users=users)


def deepest_first(edges: Edges, ranks: Sequence[int]) -> list[int]:
    """``ranks``: of the kind of each node."""
    depth, size = _post_dominators(edges.users)
    pending = [len(row) for row in edges.users]
    kinds = [(ranks[at], *sorted(ranks[producer] for producer in row)) for at, row in enumerate(edges.needs)]
    heap: list[tuple[int, int, tuple[int, ...], int, int, int]] = []
    order: list[int] = []

    def placed(row: dict[int, int]) -> None:
        for producer, operand in row.items():
            pending[producer] -= 1
            if not pending[producer]:
                key = (-depth[producer], size[producer], kinds[producer], -len(order), operand, producer)
                heapq.heappush(heap, key)

    placed(edges.returned)
    while heap:
        at = heapq.heappop(heap)[-1]
        order.append(at)
        placed(edges.needs[at])
    return order[::-1]


def nearest_first(edges: Edges, other: Sequence[int], kinds: Sequence[int]) -> list[int]:
    """``other``: the order that decides ties. ``kinds``: of the nodes, by number."""
    distance = [1] * len(edges.users)
    for at in range(len(distance) - 1, -1, -1):
        for producer in edges.needs[at]:
            distance[producer] = max(distance[producer], distance[at] + 1)
    pending = [len(row) for row in edges.needs]
    place = {at: i for i, at in enumerate(other)}
    times = Counter(kinds)
    rare = [times[kind] < COMMON for kind in kinds]
    heap = [(rare[at], distance[at], place[at], at) for at, row in enumerate(edges.needs) if not row]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        at = heapq.heappop(heap)[-1]
        order.append(at)
        for user in edges.users[at]:
            if user != SINK:
                pending[user] -= 1
                if not pending[user]:
                    heapq.heappush(heap, (rare[user], distance[user], place[user], user))
    return order


def _post_dominators(users: list[list[int]]) -> tuple[list[int], list[int]]:
    """Depth below the sink and number of nodes below, in the post-dominator tree.

    ``users`` of each node stand after it; the sink is the last of all.
    """
    count = len(users)
    parent, depth, size = [SINK] * count, [1] * count, [1] * count
    for at in range(count - 1, -1, -1):
        common = users[at][0] if users[at] else SINK
        for other in users[at][1:]:
            while common != other:
                if common == SINK or other == SINK:
                    common = other = SINK
                elif depth[common] > depth[other]:
                    common = parent[common]
                elif depth[common] < depth[other]:
                    other = parent[other]
                else:
                    common, other = parent[common], parent[other]
        parent[at] = common
        depth[at] = 1 if common == SINK else depth[common] + 1
    for at in range(count):
        if parent[at] != SINK:
            size[parent[at]] += size[at]
    return depth, size
