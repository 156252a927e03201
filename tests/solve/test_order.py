"""The order of elimination."""

from __future__ import annotations

import math
import random

from autopar.passes.solve.order import elimination_order


def test_the_next_variable_is_the_one_with_the_smallest_message() -> None:
    draw = random.Random(0)
    for _ in range(50):
        count = draw.randrange(2, 40)
        domains = tuple(draw.choice((1, 2, 3)) for _ in range(count))
        scopes = [(0, v) for v in range(1, count)]  # one that all others touch, as a mode
        scopes += [(v, draw.randrange(max(0, v - 3), v)) for v in range(1, count)]
        order = elimination_order(domains, tuple(scopes), (count - 1,))
        around = {v: {u for scope in scopes if v in scope for u in scope if u != v} for v in range(count)}
        left = set(range(count - 1))
        for v in order:
            sizes = {u: math.prod(domains[w] for w in around[u]) for u in left}
            assert v == min(left, key=lambda u: (sizes[u], u))
            left.remove(v)
            for u in around[v]:
                around[u] |= around[v] - {u}
                around[u].remove(v)
        assert not left
