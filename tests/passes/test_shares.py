"""Unequal shares of a step: as good as any allocation that fits, and found whenever there is one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from autopar.passes.shares import Taker, allocate, most_within

CASES = 300


def instance(seed: int) -> tuple[int, list[Taker]]:
    """2 to 4 devices with a rate, a fixed part behind which some work hides, and memory that grows with the share."""
    rng = random.Random(seed)
    takers = []
    units = rng.randint(2, 12)
    for _ in range(rng.randint(2, 4)):
        unit, fixed, hidden = rng.randint(1, 50), rng.randint(0, 60), rng.randint(0, 100)
        held, each, budget = rng.randint(0, 10), rng.randint(0, 4), rng.randint(4, 40)

        def finish(u: int, unit: int = unit, fixed: int = fixed, hidden: int = hidden) -> int:
            return fixed + u * unit + max(0, hidden - u * unit // 2)

        takers.append(Taker(finish_ns=finish, most=most_within(budget, lambda u, a=held, b=each: a + b * u, units)))  # type: ignore[misc]
    return units, takers


def everything(units: int, takers: list[Taker]) -> Iterator[tuple[int, ...]]:
    ranges = [range(1, min(taker.most, units) + 1) for taker in takers]
    return (taken for taken in itertools.product(*ranges) if sum(taken) == units)


def ends(takers: list[Taker], taken: tuple[int, ...]) -> int:
    return max(taker.finish_ns(u) for taker, u in zip(takers, taken, strict=True))


def test_no_allocation_is_better_and_none_is_missed() -> None:
    """300 random cases against all allocations, of which some are infeasible."""
    infeasible = 0
    for seed in range(CASES):
        units, takers = instance(seed)
        best = min((ends(takers, taken) for taken in everything(units, takers)), default=None)
        found = allocate(units, takers)
        if found is None:
            assert best is None, seed
            infeasible += 1
            continue
        assert sum(found) == units, seed
        assert all(1 <= u <= taker.most for u, taker in zip(found, takers, strict=True)), seed
        assert ends(takers, found) == best, seed
    assert 20 < infeasible < CASES // 2


def test_shares_are_in_proportion_to_speed_and_ties_go_to_the_first() -> None:
    def device(unit_ns: int) -> Taker:
        return Taker(finish_ns=lambda u: u * unit_ns, most=100)

    assert allocate(16, [device(3), device(3), device(5), device(5)]) == (5, 5, 3, 3)
    assert allocate(5, [device(1), device(1)]) == (3, 2)


@pytest.mark.parametrize(("budget", "most"), [(9, 0), (10, 1), (29, 2), (10**9, 7)])
def test_memory_allows_so_many_units(budget: int, most: int) -> None:
    assert most_within(budget, lambda u: 10 * u, 7) == most


def test_memory_of_all_devices_together_may_be_too_small() -> None:
    assert allocate(5, [Taker(finish_ns=lambda u: u, most=2)] * 2) is None
    assert allocate(1, [Taker(finish_ns=lambda u: u, most=2)] * 2) is None
