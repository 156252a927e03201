"""Times of places by the number of their calls, and of places that share all calls."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from autopar.passes.solve.ladders import by_states, least_ns


@pytest.mark.parametrize("seed", range(10))
def test_each_call_begins_in_the_state_that_the_last_one_left(seed: int) -> None:
    """What leaves a state cheaply need not lead to one that is left cheaply, nor be cheap to hand over."""
    rng = np.random.default_rng(seed)
    steps, begins, ends = rng.integers(1, 50, (2, 3, 3)), rng.integers(0, 20, 3), rng.integers(0, 20, 3)
    bases = rng.integers(-40, 40, 2)
    ladder = by_states([each.astype(float) for each in steps], bases.tolist(), begins.astype(float), ends.astype(float))
    for calls, found in zip(range(1, 5), ladder, strict=False):
        ways = list(itertools.product(range(3), repeat=calls + 1))
        assert found == max(
            base + min(
                begins[way[0]] + sum(step[a, b] for a, b in itertools.pairwise(way)) + ends[way[-1]] for way in ways
            )
            for base, step in zip(bases, steps, strict=True)
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_places_share_all_calls(seed: int) -> None:
    draw = random.Random(seed)
    kinds = [(draw.randint(1, 2), draw.randint(0, 30), draw.randint(1, 10)) for _ in range(3)]
    places = [(base, call) for count, base, call in kinds for _ in range(count)]
    calls = draw.randint(len(places), len(places) + 5)
    for each in (False, True):
        splits = itertools.product(range(int(each), calls + 1), repeat=len(places))
        best = min(
            max(base + call * n for (base, call), n in zip(places, split, strict=True) if n)
            for split in splits if sum(split) == calls
        )
        ladders = [(float(time) for time in itertools.count(base + call, call)) for _, base, call in kinds]
        assert least_ns([count for count, _, _ in kinds], ladders, calls, each=each) == best


def test_nothing_is_known_where_no_call_fits() -> None:
    ladders = [itertools.repeat(float("inf")), (float(n) for n in itertools.count(1))]
    assert least_ns([1, 1], ladders, 2, each=True) == 0.0
