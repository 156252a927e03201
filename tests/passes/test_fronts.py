"""Ways of many calls: as good as all of them where they are told apart, and never what there is not."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from autopar.passes import fronts
from autopar.passes.fronts import Fronts


def drawn(seed: int, most_bytes: int) -> tuple[list[tuple[int, int]], Fronts]:
    rng = random.Random(seed)
    options = [(rng.randint(1, 400), rng.randint(1, 400)) for _ in range(rng.randint(1, 4))]
    sizes, times = np.array(options, dtype=np.int64).T
    return options, Fronts(sizes, times, most_bytes)


@pytest.mark.parametrize("seed", range(12))
def test_no_way_is_better(seed: int) -> None:
    options, found = drawn(seed, 1200)
    for calls in range(6):
        front = found.of(calls)
        every = [
            tuple(map(sum, zip((0, 0), *way, strict=True)))
            for way in itertools.combinations_with_replacement(options, calls)
        ]
        fitting = [(size, time) for size, time in every if size <= 1200]
        best = {one for one in fitting if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in fitting)}
        assert {*zip(front.bytes.tolist(), front.time_ns.tolist(), strict=True)} == best


@pytest.mark.parametrize("most", [2, 5, fronts.MOST])
def test_counts_are_of_what_a_way_holds_and_takes(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ways between are left out; the leanest and the fastest stay."""
    monkeypatch.setattr(fronts, "MOST", most)
    for seed in range(12):
        options, found = drawn(seed, 10**6)
        front = found.of(9)
        assert len(front.bytes) <= most
        for way, (size, time) in enumerate(zip(front.bytes.tolist(), front.time_ns.tolist(), strict=True)):
            counts = found.counts(9, way)
            assert sum(counts) == 9
            assert size == sum(n * own for n, (own, _) in zip(counts, options, strict=True))
            assert time == sum(n * own for n, (_, own) in zip(counts, options, strict=True))
        assert front.bytes[0] == 9 * min(size for size, _ in options)
        assert front.time_ns[-1] == 9 * min(time for _, time in options)


def test_what_does_not_fit_has_no_way() -> None:
    assert len(Fronts(np.array([50]), np.array([1]), 120).of(3).bytes) == 0
