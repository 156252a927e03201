"""The multipliers at which known assignments prove most."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autopar.passes.problem import Chain, Problem, Segment, Table
from autopar.passes.solve import solve
from autopar.passes.solve.choice import Candidate
from autopar.passes.solve.steepest import steepest


def known(time: int, held: int, works: tuple[int, ...]) -> Candidate:
    means = tuple(map(float, works))
    return Candidate(root=np.zeros(0, dtype=np.int64), calls=(), time=time, held=held, works=works, mean_works=means)


def proves(candidates: list[Candidate], memory: int, price: float, weights: tuple[float, ...]) -> float:
    """What the candidates say that these multipliers prove at most."""
    return min(
        c.time + price * (c.held - memory + sum(w * x for w, x in zip(weights, c.mean_works, strict=True)))
        for c in candidates
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_multipliers_of_a_grid_prove_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = 60
    candidates = [
        known(int(t), int(h), (int(a), int(b)))
        for t, h, a, b in zip(*(rng.integers(1, 100, 8) for _ in range(4)), strict=True)
    ]
    candidates.append(known(200, 1, (1, 1)))  # fits, so that what can be proven has a limit
    found, most = steepest(candidates, 2, memory)
    assert found.time == 1.0 and sum(found.weights) == pytest.approx(1.0)
    assert proves(candidates, memory, found.memory, found.weights) == pytest.approx(most, rel=1e-6)
    grid = itertools.product(np.linspace(0.0, 10.0, 201), np.linspace(0.0, 1.0, 41))
    assert all(proves(candidates, memory, p, (a, 1 - a)) <= most + 1e-6 * abs(most) for p, a in grid)


def test_weights_that_make_all_too_large_are_for_memory_alone() -> None:
    candidates = [known(10, 5, (9, 0)), known(20, 5, (0, 9))]
    found, least = steepest(candidates, 2, 8)
    assert found.time == 0.0
    assert found.weights == pytest.approx((0.5, 0.5))
    assert least == pytest.approx(1.5)  # 5 + 4.5 - 8


def test_of_heavy_and_of_light_assignments_others_hold_most_in_passing() -> None:
    """The fastest holds most in passing in the root, all that are lean do in calls."""
    root = Segment(name="root", domains=(1,), tables=(table((0,), sync=[0], transient=[50]),))
    modes = table((0,), sync=[10, 20, 22, 40], held=[100, 1, 1, 1], transient=[10, 70, 60, 55])
    chain = Chain(segment=Segment(name="block", domains=(4,), tables=(modes,)), count=8,
                  inputs=(), outputs=(), root_inputs=(), root_outputs=())  # fmt: skip
    found = solve(Problem(root=root, chains=(chain,)), memory_bytes=70, effort=0)
    assert found.objective_ns == 8 * 22
    assert found.bound_ns > 0.98 * found.objective_ns


def table(over: tuple[int, ...], *, sync: list[int], held: list[int] | None = None, transient: list[int]) -> Table:
    numbers = [np.array(row, dtype=np.int64) for row in (sync, held or [0] * len(sync), transient)]
    return Table(variables=over, sync_ns=numbers[0], bytes=numbers[1], transient_bytes=numbers[2])
