"""An exhaustive oracle for tiny problems, for tests.

Every assignment of every instance is tried; what differs in nothing but (time, bytes, transient) at one
boundary is tried once, and so is what is no better in all three than another.
"""

from __future__ import annotations

import itertools

from autopar.passes.problem import FORBIDDEN, Chain, Problem, Segment

Triple = tuple[int, int, int]


def best_objective(problem: Problem, *, memory_bytes: int) -> int | None:
    """Return the least objective within ``memory_bytes``, or None when nothing fits."""
    return min((t for t, b, w in outcomes(problem) if b + w <= memory_bytes), default=None)


def least_memory(problem: Problem) -> int | None:
    """Return the least memory of any assignment, or None when every one is forbidden."""
    return min((b + w for _, b, w in outcomes(problem)), default=None)


def outcomes(problem: Problem) -> set[Triple]:
    """Return every undominated (time, bytes without the transient, largest transient)."""
    blocks = [_block(chain) for chain in problem.chains]
    found: set[Triple] = set()
    reach: dict[tuple[int, tuple[int, ...], tuple[int, ...]], dict[tuple[int, ...], set[Triple]]] = {}
    for values in itertools.product(*(range(d) for d in problem.root.domains)):
        here = _numbers(problem.root, values)
        if here is None:
            continue
        totals = {here}
        for number, (chain, block) in enumerate(zip(problem.chains, blocks, strict=True)):
            start, shared, end = (
                tuple(values[v] for v in variables)
                for variables in (chain.root_inputs, chain.root_shared, chain.root_outputs)
            )
            key = (number, start, shared)
            if key not in reach:
                reach[key] = _follow(block, start, shared, chain.count)
            totals = {_add(a, b) for a in totals for b in reach[key].get(end, set())}
        found = undominated(found | totals)
    return found


def undominated(triples: set[Triple]) -> set[Triple]:
    """Return the triples that no other one is at least as good as in everything."""
    kept: list[Triple] = []
    for t in sorted(triples):
        if not any(k[0] <= t[0] and k[1] <= t[1] and k[2] <= t[2] for k in kept):
            kept.append(t)
    return set(kept)


Block = dict[tuple[tuple[int, ...], tuple[int, ...]], dict[tuple[int, ...], set[Triple]]]


def _block(chain: Chain) -> Block:
    block: Block = {}
    for values in itertools.product(*(range(d) for d in chain.segment.domains)):
        here = _numbers(chain.segment, values)
        if here is not None:
            start, shared, end = (
                tuple(values[v] for v in vs) for vs in (chain.inputs, chain.shared, chain.outputs)
            )
            block.setdefault((start, shared), {}).setdefault(end, set()).add(here)
    return {key: {end: undominated(ts) for end, ts in ends.items()} for key, ends in block.items()}


def _follow(
    block: Block, start: tuple[int, ...], shared: tuple[int, ...], count: int
) -> dict[tuple[int, ...], set[Triple]]:
    at: dict[tuple[int, ...], set[Triple]] = {start: {(0, 0, 0)}}
    for _ in range(count):
        after: dict[tuple[int, ...], set[Triple]] = {}
        for state, sofar in at.items():
            for end, steps in block.get((state, shared), {}).items():
                after.setdefault(end, set()).update(_add(a, b) for a in sofar for b in steps)
        at = {end: undominated(ts) for end, ts in after.items()}
    return at


def _add(a: Triple, b: Triple) -> Triple:
    return a[0] + b[0], a[1] + b[1], max(a[2], b[2])


def _numbers(segment: Segment, values: tuple[int, ...]) -> Triple | None:
    sync = net = earlier = ahead = held = transient = 0
    for table in segment.tables:
        at = tuple(values[v] for v in table.variables)
        if table.sync_ns[at] >= FORBIDDEN:
            return None
        sync += int(table.sync_ns[at])
        net += 0 if table.hide_ns is None else int(table.hide_ns[at])
        net -= 0 if table.cover_ns is None else int(table.cover_ns[at])
        earlier += 0 if table.earlier_ns is None else int(table.earlier_ns[at])
        ahead += 0 if table.ahead_ns is None else int(table.ahead_ns[at])
        held += 0 if table.bytes is None else int(table.bytes[at])
        transient += 0 if table.transient_bytes is None else int(table.transient_bytes[at])
    return sync + max(0, net, net + earlier, net + earlier + ahead), held, transient
