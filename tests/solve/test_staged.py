"""The bound of a model that is cut into stages: no higher than any cut, and no higher than is asked for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from autopar.passes.problem import Chain, Problem, Segment, Table
from autopar.passes.solve import Model, Places, staged_bound_ns, undivided_bound_ns
from tests.solve.layers import layer_stack

PRICE = 0.05

# What a call of a chain may be: time, bytes and bytes in passing by mode; how many calls there are.
Layers = tuple[tuple[tuple[int, int, int], ...], int]


@pytest.mark.parametrize("seed", range(6))
def test_a_bound_that_is_enough_is_not_raised_further(seed: int) -> None:
    model = Model(layer_stack(seed, count=12, variables=6, size=4))
    places = [
        Places(model=model, count=count, memory_bytes=memory, sent_ns=1000)
        for count, memory in ((1, 300_000_000), (2, 200_000_000), (1, 100_000_000))
    ]
    whole = staged_bound_ns(places, PRICE)
    assert whole > 0
    assert staged_bound_ns(places, PRICE, whole + 1) == whole
    for share in (0.1, 0.5, 0.9, 1.0):
        enough = int(whole * share)
        assert enough <= staged_bound_ns(places, PRICE, enough) <= whole
    assert 0.9 * whole < staged_bound_ns(places, PRICE, 1) <= whole
    undivided = undivided_bound_ns(places)
    assert 0.9 * whole < undivided <= whole
    bare = undivided_bound_ns(places, bare=True)
    assert 0.5 * whole < bare <= undivided * (1 + 1e-5)  # another price of memory is tried


def test_calls_are_in_one_mode_each() -> None:
    """Places with memory for one fast call and one slow one, two slow ones, and two fast ones take two each.

    Not so in the time of a fast and a slow one: of those with little memory each takes one then, and four places take
    no more than six.
    """
    layers = (((100, 50, 0), (130, 5, 0)), 7)
    memory = (20, 20, 60, 110)
    assert bound_ns([layers], memory) == pytest.approx(260, abs=1)
    assert bound_ns([(layers[0], 6)], memory) == pytest.approx(230, abs=1)
    assert bound_ns([(((100, 50, 40), (130, 5, 0)), 6)], memory) == pytest.approx(260, abs=1)  # 95 of 60 bytes


@pytest.mark.parametrize("seed", range(30))
def test_no_cut_is_faster(seed: int) -> None:
    """Of two kinds of calls, in any order; the best is found by trying all modes at all places."""
    draw = random.Random(seed)
    stacks = [
        (
            tuple(
                (draw.randint(50, 200), draw.randint(0, 60), draw.choice((0, draw.randint(0, 40))))
                for _ in range(draw.randint(1, 3))
            ),
            draw.randint(1, 4),
        )
        for _ in range(2)
    ]
    memory = tuple(sorted((draw.randint(20, 250) for _ in range(3)), reverse=True))
    best = fastest_ns(stacks, memory)
    found = bound_ns(stacks, memory)
    assert 0 < found <= best


def bound_ns(stacks: Sequence[Layers], memory: Sequence[int]) -> float:
    """T of places with so much memory, one each."""
    chains = tuple(
        Chain(
            segment=Segment(name=f"block{number}", domains=(len(modes),), tables=(
                Table(
                    variables=(0,), sync_ns=np.array([t for t, _, _ in modes]),
                    bytes=np.array([b for _, b, _ in modes]), transient_bytes=np.array([p for _, _, p in modes]),
                ),
            )), count=count, inputs=(), outputs=(), root_inputs=(), root_outputs=(),
        )
        for number, (modes, count) in enumerate(stacks)
    )  # fmt: skip
    model = Model(Problem(root=Segment(name="root", domains=(), tables=()), chains=chains))
    places = [Places(model=model, count=1, memory_bytes=size, sent_ns=0) for size in memory]
    bare, *found = undivided_bound_ns(places, bare=True), undivided_bound_ns(places), staged_bound_ns(places, 1.0)
    assert found == sorted(found)
    assert bare <= found[0] * (1 + 1e-5)
    return found[-1]


def fastest_ns(stacks: Sequence[Layers], memory: Sequence[int]) -> float:
    """Of all ways to give each place some calls of each kind, and each call a mode."""
    shares = [
        [split for split in itertools.product(range(count + 1), repeat=len(memory)) if sum(split) == count]
        for _, count in stacks
    ]
    return min(
        max(_place_ns(stacks, [split[at] for split in splits], size) for at, size in enumerate(memory))
        for splits in itertools.product(*shares)
    )


def _place_ns(stacks: Sequence[Layers], counts: Sequence[int], memory: int) -> float:
    ways = [
        itertools.combinations_with_replacement(modes, count)
        for (modes, _), count in zip(stacks, counts, strict=True)
    ]
    calls = (list(itertools.chain(*chosen)) for chosen in itertools.product(*ways))
    fitting = (
        sum(t for t, _, _ in own) for own in calls
        if sum(b for _, b, _ in own) + max((p for _, _, p in own), default=0) <= memory
    )
    return min(fitting, default=float("inf"))
