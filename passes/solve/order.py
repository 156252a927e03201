"""Choose the order in which the variables of a segment are eliminated.

Eliminating a variable joins all tables that hold it (its *bucket*) and leaves one table, its *message*, over
the bucket's other variables. The next one is always the variable with the smallest message; ties go to the
lower variable index. Where that leaves much work, it is repeated with every size raised to a power that
differs from variable to variable, and the order whose buckets hold the fewest entries in all is taken. The
order depends on the arguments alone: the powers are the same in every process.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

EASY_ENTRIES = 1 << 15
RESTARTS = 20
SPREAD = 0.4


def elimination_order(
    domains: Sequence[int], scopes: Iterable[tuple[int, ...]], kept: Sequence[int]
) -> tuple[int, ...]:
    """Return every variable not in ``kept``, first eliminated first."""
    graph: list[set[int]] = [set() for _ in domains]
    for scope in scopes:
        for v in scope:
            graph[v].update(scope)
    for v, around in enumerate(graph):
        around.discard(v)
    best, entries = _greedy(domains, graph, kept, [1.0] * len(domains))
    powers = random.Random(0)
    for _ in range(RESTARTS if entries > EASY_ENTRIES else 0):
        found = _greedy(domains, graph, kept, [1.0 + SPREAD * powers.random() for _ in domains])
        if found[1] < entries:
            best, entries = found
    return best


def _greedy(
    domains: Sequence[int], start: Sequence[set[int]], kept: Sequence[int], powers: Sequence[float]
) -> tuple[tuple[int, ...], int]:
    graph = [set(around) for around in start]
    size = domains.__getitem__
    messages = [math.prod(map(size, around)) for around in graph]
    stay = frozenset(kept)
    keys = {v: (math.log2(messages[v]) * powers[v], v) for v in range(len(domains)) if v not in stay}
    order: list[int] = []
    entries = 0
    while keys:
        v = min(keys, key=keys.__getitem__)
        del keys[v]
        order.append(v)
        around = graph[v]
        entries += messages[v] * domains[v]
        for u in around:
            graph[u] |= around
            graph[u] -= {u, v}
        for u in around:
            if u in keys:
                messages[u] = math.prod(map(size, graph[u]))
                keys[u] = (math.log2(messages[u]) * powers[u], u)
    return tuple(order), entries
