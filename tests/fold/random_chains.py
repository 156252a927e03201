"""Random graphs that hold chains of random layers, some of them a little unlike the others."""

from __future__ import annotations

import random

from autopar.ir.graph import Graph
from tests.fold.build import Builder

UNARY = ("aten.relu.default", "aten.tanh.default", "aten.neg.default")
BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor")


def random_chain(rng: random.Random, *, uneven: bool = True) -> Graph:
    """Up to two runs of up to five layers with up to two carried and two shared values."""
    build = Builder()
    values = [build.input(f"x{i}") for i in range(rng.randint(1, 3))]
    values += [build.op(rng.choice(UNARY), rng.choice(values)) for _ in range(rng.randint(0, 3))]
    for _ in range(rng.randint(1, 2)):
        carried = [rng.choice(values) for _ in range(rng.randint(1, 2))]
        shared = [rng.choice(values) for _ in range(rng.randint(0, 2))]
        seed, width = rng.random(), rng.randint(1, 8)
        tied = build.param()
        for _ in range(rng.randint(2, 5)):
            odd = uneven and rng.random() < 0.15
            carried = _layer(build, random.Random(seed), carried, shared, width, tied, odd=odd)
            if uneven and rng.random() < 0.05:
                values.append(rng.choice(carried))
        values += carried
    out = values[0]
    for value in values[1:]:
        out = build.op("aten.add.Tensor", out, value)
    made = [node.result.name for node in build.nodes if node.operands]
    return build.graph(out, *rng.sample(made, rng.choice([0, 0, 1, min(3, len(made))])))


def _layer(
    build: Builder,
    rng: random.Random,
    carried: list[str],
    shared: list[str],
    width: int,
    tied: str,
    *,
    odd: bool,
) -> list[str]:
    """Depends on all that is carried; the same for the same state of ``rng``, unless ``odd``."""
    known = [*carried, *shared]
    unused = list(carried)
    for at in range(width):
        kind = rng.random()
        first = unused.pop(0) if unused else rng.choice(known)
        if kind < 0.35:
            known.append(build.linear(first, tied if rng.random() < 0.1 else None))
        elif kind < 0.6:
            known.append(build.op(rng.choice(UNARY), first, odd=odd and at == width // 2))
        else:
            known.append(build.op(rng.choice(BINARY), first, rng.choice(known)))
    leaving = []
    for at in range(len(carried)):
        mixed = build.op("aten.add.Tensor", carried[at], known[-1 - at])
        leaving.append(build.op("aten.mul.Tensor", mixed, build.linear(rng.choice(known))))
    return leaving
