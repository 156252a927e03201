"""Choose the order in which the variables of a segment are eliminated.

Eliminating a variable joins all tables that hold it (its *bucket*) and leaves one table, its *message*, over
the bucket's other variables. The next one is always the variable with the smallest message; ties go to the
lower variable index. Where that leaves much work, it is repeated with every size raised to a power that
differs from variable to variable, and the order whose buckets hold the fewest entries in all is taken; where that
still is much, variables of it are moved about as long as it gets less. The order depends on the arguments alone: the
random numbers are the same in every process.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache

EASY_ENTRIES, HARD_ENTRIES = 1 << 18, 1 << 21
RESTARTS, MOVES = 20, 600
VARIABLES = 400  # of a segment with more of them fewer restarts and moves are tried, which take as long each
SPREAD = 0.4
MEAN_MOVE = 20.0

Graph = list[set[int]]


@lru_cache(maxsize=1024)  # problems of meshes with as many axes are alike
def elimination_order(
    domains: tuple[int, ...], scopes: tuple[tuple[int, ...], ...], kept: tuple[int, ...],
    picked: tuple[tuple[int, ...], ...] = (),
) -> tuple[int, ...]:  # fmt: skip
    """Return every variable not in ``kept``, first eliminated first.

    ``picked``: pairs whose table only forbids; of two the larger one is worked out once for what the other leaves.
    """
    graph: Graph = [set() for _ in domains]
    for scope in scopes:
        for v in scope:
            graph[v].update(scope)
    for v, around in enumerate(graph):
        around.discard(v)
    selectors: dict[int, set[int]] = {}
    for pair in picked:
        large, small = sorted(pair, key=lambda v: (-domains[v], v))
        selectors.setdefault(large, set()).add(small)
    best, entries = _greedy(domains, graph, kept, [1.0] * len(domains), selectors)
    draw, share = random.Random(0), min(1.0, VARIABLES / max(len(domains), 1))
    for _ in range(math.ceil(RESTARTS * share) if entries > EASY_ENTRIES else 0):
        hurry = draw.random()
        powers = [(1.0 + SPREAD * draw.random()) * (hurry if v in selectors else 1.0) for v in range(len(domains))]
        found = _greedy(domains, graph, kept, powers, selectors)
        if found[1] < entries:
            best, entries = found
    for _ in range(math.ceil(MOVES * share) if entries > HARD_ENTRIES else 0):
        moved = list(best)
        start = draw.randrange(len(moved))
        v = moved.pop(start)
        by = draw.choice((-1, 1)) * (1 + int(draw.expovariate(1 / MEAN_MOVE)))
        moved.insert(min(max(start + by, 0), len(moved)), v)
        now = _entries(domains, graph, moved, selectors)
        if now <= entries:
            best, entries = tuple(moved), now
    return best


def _entries(
    domains: Sequence[int], start: Sequence[set[int]], order: Sequence[int], selectors: Mapping[int, set[int]]
) -> int:
    """Of all buckets of an order."""
    graph = [set(around) for around in start]
    entries = 0
    for v in order:
        around = graph[v]
        entries += math.prod([domains[u] for u in around]) * _factor(v, domains[v], around, selectors)
        for u in around:
            graph[u] |= around
            graph[u] -= {u, v}
    return entries


def _factor(v: int, size: int, around: set[int], selectors: Mapping[int, set[int]]) -> int:
    """Entries of a variable's bucket for each of its message."""
    whole = selectors.get(v)
    return 2 if whole is not None and whole <= around else size


def _greedy(
    domains: Sequence[int], start: Sequence[set[int]], kept: Sequence[int], powers: Sequence[float],
    selectors: Mapping[int, set[int]],
) -> tuple[tuple[int, ...], int]:  # fmt: skip
    graph = [set(around) for around in start]
    size = domains.__getitem__
    messages = [math.prod(map(size, around)) for around in graph]
    stay = frozenset(kept)
    keys = {v: (math.log2(messages[v]) * powers[v], v) for v in range(len(domains)) if v not in stay}
    heap = list(keys.values())
    heapq.heapify(heap)
    order: list[int] = []
    entries = 0
    while heap:
        key = heapq.heappop(heap)
        v = key[1]
        if keys.get(v) != key:  # eliminated, or another since
            continue
        del keys[v]
        order.append(v)
        around = graph[v]
        entries += messages[v] * _factor(v, domains[v], around, selectors)
        for u in around:
            new = around - graph[u]
            graph[u] |= new
            graph[u] -= {u, v}
            if u in keys and (len(new) > 1 or size(v) > 1):
                # the product over hundreds of neighbours of one that all others touch has thousands of digits
                messages[u] = messages[u] * math.prod(size(w) for w in new if w != u) // size(v)
                keys[u] = (math.log2(messages[u]) * powers[u], u)
                heapq.heappush(heap, keys[u])
    return tuple(order), entries
