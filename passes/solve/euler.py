"""Turn counts of arcs into one path that walks every arc that often (Hierholzer), run-length encoded."""

from __future__ import annotations

from autopar.passes.problem import IntArray


def unreached(start: IntArray, end: IntArray, counts: IntArray, first: int) -> list[int]:
    """Return the states that used arcs touch but that no used arcs lead to from ``first``."""
    used = [(int(a), int(b)) for a, b, n in zip(start, end, counts, strict=True) if n > 0]
    seen = {first}
    grown = True
    while grown:
        more = {b for a, b in used if a in seen} - seen
        seen |= more
        grown = bool(more)
    return sorted({q for arc in used for q in arc} - seen)


def euler_runs(start: IntArray, end: IntArray, counts: IntArray, first: int) -> tuple[tuple[int, int], ...]:
    """Return (repeat, arc index) of a path from ``first``; self-arcs come at the first visit."""
    loops: dict[int, list[tuple[int, int]]] = {}
    leaving: dict[int, list[int]] = {}
    for arc in range(counts.size - 1, -1, -1):
        a, b, n = int(start[arc]), int(end[arc]), int(counts[arc])
        if n and a == b:
            loops.setdefault(a, []).insert(0, (n, arc))
        elif n:
            leaving.setdefault(a, []).extend([arc] * n)
    stack: list[tuple[int, int]] = [(first, -1)]
    backwards: list[int] = []
    while stack:
        state, by = stack[-1]
        arcs = leaving.get(state)
        if arcs:
            arc = arcs.pop()
            stack.append((int(end[arc]), arc))
        else:
            stack.pop()
            if by >= 0:
                backwards.append(by)
    runs = loops.pop(first, [])
    for arc in reversed(backwards):
        runs = [*runs, (1, arc), *loops.pop(int(end[arc]), [])]
    return tuple(runs)
