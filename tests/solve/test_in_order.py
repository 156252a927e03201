"""The bound of calls of several chains that follow each other: what trying every cut finds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from autopar.passes.solve.in_order import PRECISE, Rungs, Stop, in_order_ns

# By chain: what a call takes, how many there are, what is repeated at each place that has some.
Chains = Sequence[tuple[float, int, float]]


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_takes_less_and_one_takes_as_much(seed: int) -> None:
    draw = random.Random(seed)
    chains = [
        (draw.uniform(1, 10), draw.randint(1, 5), draw.choice((0, draw.uniform(0, 5))))
        for _ in range(draw.randint(1, 3))
    ]  # fmt: skip
    calls = sum(count for _, count, _ in chains)
    beside = [draw.uniform(0, 8) for _ in range(draw.randint(1, min(4, calls)))]
    best = fastest(chains, beside)
    assert best * (1 - 2 * PRECISE) <= bound(chains, beside, 0.0) <= best * (1 + 1e-9)


def test_what_is_known_is_not_lowered() -> None:
    chains, beside = [(3.0, 4, 0.0), (5.0, 4, 0.0)], [1.0, 0.0]
    assert bound(chains, beside, 100.0) == 100.0


def test_places_without_calls_are_not_allowed() -> None:
    """Three places, of which one is slow at anything: it takes a call nevertheless."""
    assert bound([(1.0, 2, 0.0), (1.0, 2, 0.0)], [50.0, 0.0, 0.0], 0.0) == pytest.approx(51.0, rel=2 * PRECISE)


def bound(chains: Chains, beside: Sequence[float], low: float) -> float:
    def alone(time: float, base: float) -> Rungs:
        return Rungs(base + time * n for n in itertools.count(1))

    own = [again for _, _, again in chains]
    stops = [
        Stop(count=1, sent_ns=base, own_ns=own, alone=[alone(time, base + again) for time, _, again in chains])
        for base in beside
    ]
    return in_order_ns(stops, [alone(time, 0.0) for time, _, _ in chains], [count for _, count, _ in chains], low)


def fastest(chains: Chains, beside: Sequence[float]) -> float:
    calls = [number for number, (_, count, _) in enumerate(chains) for _ in range(count)]

    def time(base: float, own: Sequence[int]) -> float:
        return base + max(chains[n][2] for n in own) + sum(chains[n][0] for n in own)

    def cuts() -> Iterator[Sequence[int]]:
        for inside in itertools.combinations(range(1, len(calls)), len(beside) - 1):
            yield [0, *inside, len(calls)]

    return min(
        max(time(base, calls[i:j]) for base, (i, j) in zip(beside, itertools.pairwise(cut), strict=True))
        for cut in cuts()
    )
