"""Small random problems, and the same problem with its chains unrolled into the root."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autopar.passes.problem import FORBIDDEN, Chain, IntArray, Problem, Segment, Table


def random_table(
    rng: np.random.Generator,
    variables: tuple[int, ...],
    domains: Sequence[int],
    *,
    forbidden: float = 0.1,
    hidden: bool = True,
    memory: bool = True,
    transient: bool = True,
    scale: int = 30,
) -> Table:
    """Random numbers on a random selection of columns."""
    shape = tuple(domains[v] for v in variables)

    def some(chance: float, size: int) -> IntArray | None:
        return rng.integers(0, size, shape) if rng.random() < chance else None

    def debt(chance: float) -> IntArray | None:
        return rng.integers(-scale, scale, shape) if rng.random() < chance else None

    sync = rng.integers(0, scale, shape)
    sync[rng.random(shape) < forbidden] = FORBIDDEN
    return Table(
        variables=variables,
        sync_ns=sync,
        hide_ns=some(0.4, scale) if hidden else None,
        cover_ns=some(0.4, scale) if hidden else None,
        earlier_ns=debt(0.3) if hidden else None,
        ahead_ns=debt(0.3) if hidden else None,
        bytes=some(0.6, scale) if memory else None,
        transient_bytes=some(0.3, scale) if memory and transient else None,
    )


def random_segment(
    rng: np.random.Generator, name: str, domains: tuple[int, ...], *, mode: int | None = None, **kinds: Any
) -> Segment:
    """A connected segment: each variable is tied to an earlier one, ``mode`` to all; some ternary tables."""
    scopes: list[tuple[int, ...]] = [(v,) for v in range(len(domains)) if rng.random() < 0.5]
    for v in range(1, len(domains)):
        u = int(rng.integers(0, v))
        scopes.append((v, u) if mode is None or mode in (u, v) else (v, mode, u))
    if len(domains) >= 3:
        scopes.append(tuple(int(v) for v in rng.permutation(len(domains))[:3]))
    tables = tuple(random_table(rng, scope, domains, **kinds) for scope in scopes)
    return Segment(name=name, domains=domains, tables=tables)


def random_problem(seed: int, *, most_calls: int = 3, **kinds: Any) -> Problem:
    """Up to two chains of up to ``most_calls`` calls, with carried and shared values and a mode variable."""
    rng = np.random.default_rng(seed)
    root_domains = tuple(int(d) for d in rng.integers(1, 4, int(rng.integers(2, 5))))
    root = random_segment(rng, "root", root_domains, **kinds)
    chains = tuple(
        _random_chain(rng, f"block{i}", root_domains, most_calls, **kinds)
        for i in range(int(rng.integers(0, 3)))
    )
    return Problem(root=root, chains=chains)


def _random_chain(
    rng: np.random.Generator, name: str, root_domains: tuple[int, ...], most_calls: int, **kinds: Any
) -> Chain:
    n = len(root_domains)
    carried = int(rng.integers(0, 3)) if n > 2 else 1
    root_inputs = tuple(int(v) for v in rng.integers(0, n, carried))
    root_outputs = tuple(
        int(rng.choice([u for u in range(n) if root_domains[u] == root_domains[v]])) for v in root_inputs
    )
    root_shared = tuple(int(v) for v in rng.integers(0, n, int(rng.integers(0, 2))))
    inner = tuple(int(d) for d in rng.integers(1, 4, 2))
    domains = (*(root_domains[v] for v in (*root_inputs, *root_outputs, *root_shared)), *inner)
    ends = np.cumsum([0, carried, carried, len(root_shared)])
    inputs, outputs, shared = (tuple(range(int(a), int(b))) for a, b in itertools.pairwise(ends))
    mode = len(domains) - 1 if rng.random() < 0.6 else None
    return Chain(
        segment=random_segment(rng, name, domains, mode=mode, **kinds),
        count=int(rng.integers(1, most_calls + 1)),
        inputs=inputs,
        outputs=outputs,
        root_inputs=root_inputs,
        root_outputs=root_outputs,
        shared=shared,
        root_shared=root_shared,
    )


def unroll(problem: Problem) -> Problem:
    """Copy every call's variables and tables into the root.

    Objective and memory are the same only where nothing hides and nothing is transient: those numbers
    belong to an instance, and the unrolled problem has one only.
    """
    domains, tables = list(problem.root.domains), list(problem.root.tables)
    for chain in problem.chains:
        entering = chain.root_inputs
        for call in range(chain.count):
            names = dict(zip(chain.inputs, entering, strict=True)) | dict(
                zip(chain.shared, chain.root_shared, strict=True)
            )
            for v, size in enumerate(chain.segment.domains):
                if v not in names:
                    names[v] = len(domains)
                    domains.append(size)
            tables += [_renamed(t, names) for t in chain.segment.tables]
            entering = tuple(names[v] for v in chain.outputs)
            if call == chain.count - 1:
                tables += [
                    _equal(a, b, domains[a]) for a, b in zip(entering, chain.root_outputs, strict=True)
                ]
    return Problem(root=Segment(name="unrolled", domains=tuple(domains), tables=tuple(tables)))


def _renamed(table: Table, names: dict[int, int]) -> Table:
    """The table over other names; diagonals are taken where two of them are one."""
    given = [names[v] for v in table.variables]
    scope = tuple(dict.fromkeys(given))
    letters = "".join("abc"[scope.index(v)] for v in given)
    out = "abc"[: len(scope)]

    def take(values: IntArray | None) -> IntArray | None:
        return None if values is None else np.ascontiguousarray(np.einsum(f"{letters}->{out}", values))

    sync = take(table.sync_ns)
    assert sync is not None
    return Table(variables=scope, sync_ns=sync, bytes=take(table.bytes))


def _equal(a: int, b: int, size: int) -> Table:
    if a == b:
        return Table(variables=(a,), sync_ns=np.zeros(size, dtype=np.int64))
    return Table(variables=(a, b), sync_ns=np.where(np.eye(size, dtype=bool), 0, FORBIDDEN).astype(np.int64))
