"""A synthetic transformer-like stack: one block of many variables called many times."""

from __future__ import annotations

import numpy as np

from autopar.passes.problem import Chain, Problem, Segment, Table


def layer_segment(
    rng: np.random.Generator, *, variables: int = 60, size: int = 15, tables: int = 90
) -> Segment:
    """Variables in a line with skips, the first carried in, the last carried out, a mode tied to all.

    Mode m holds less memory and costs more time the larger it is.
    """
    domains = (*(size for _ in range(variables)), 4)
    mode = variables
    made: list[Table] = []
    for v in range(variables):
        time = rng.integers(10_000, 500_000, size)[:, None] * np.array([10, 11, 13, 14])[None, :] // 10
        held = rng.integers(1_000_000, 40_000_000, size)[:, None] * np.array([10, 7, 3, 1])[None, :] // 10
        work = rng.integers(0, 5_000_000, (size, 4))
        hide = rng.integers(0, 100_000, (size, 4))
        cover = rng.integers(0, 200_000, (size, 4))
        made.append(
            Table(
                variables=(v, mode),
                sync_ns=time,
                hide_ns=hide,
                cover_ns=cover,
                bytes=held,
                transient_bytes=work,
            )
        )
    edges = [(v, v + 1) for v in range(variables - 1)]
    for v in range(0, variables - 5, 5):
        edges.append((v, v + 3))
    for a, b in edges[: max(0, tables - variables)] if tables < variables + len(edges) else edges:
        cost = rng.integers(0, 200_000, (size, size))
        cost[rng.random((size, size)) < 0.2] = 0
        made.append(Table(variables=(a, b), sync_ns=cost))
    return Segment(name="layer", domains=domains, tables=tuple(made))


def layer_stack(
    seed: int, *, count: int = 126, variables: int = 60, size: int = 15, shared: bool = False
) -> Problem:
    """An embedding, ``count`` layers and a head."""
    rng = np.random.default_rng(seed)
    block = layer_segment(rng, variables=variables, size=size, tables=2 * variables + 40)
    root = Segment(
        name="root",
        domains=(size, size, size, 4),
        tables=tuple(
            Table(
                variables=(v, 3),
                sync_ns=rng.integers(0, 1_000_000, (size, 4)),
                bytes=rng.integers(0, 100_000_000, (size, 4)),
                transient_bytes=rng.integers(0, 20_000_000, (size, 4)),
            )
            for v in range(3)
        ),
    )
    chain = Chain(
        segment=block,
        count=count,
        inputs=(0,),
        outputs=(variables - 1,),
        root_inputs=(0,),
        root_outputs=(1,),
        shared=(variables // 2,) if shared else (),
        root_shared=(2,) if shared else (),
    )
    return Problem(root=root, chains=(chain,))
