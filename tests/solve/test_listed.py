"""The bound of listed choices is no higher than any plan's time, and as high as multipliers prove."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autopar.passes.problem import FORBIDDEN, Chain, Problem, Segment, Table
from autopar.passes.solve import listed as module
from autopar.passes.solve import listed_bound_ns, solver_of
from autopar.passes.solve.brute import best_objective, least_memory
from tests.solve.instances import random_problem

AMPLE = 1 << 40
SEEDS = range(120)


def independent(seed: int, **kinds: bool) -> Problem:
    """Segments that share nothing but memory."""
    made = random_problem(seed, **kinds)
    none = dict.fromkeys(("inputs", "outputs", "root_inputs", "root_outputs", "shared", "root_shared"), ())
    return replace(made, chains=tuple(replace(chain, **none) for chain in made.chains))  # type: ignore[arg-type]


def budgets(problem: Problem) -> list[int]:
    least = least_memory(problem) or 0
    return [max(0, least - 1), least, int(1.1 * least), int(1.5 * least), 2 * least + 10, AMPLE]


def calls(count: int, **numbers: list[int]) -> Problem:
    """Of a block with one variable; the root takes 5 ns."""
    arrays = {name: np.array(values, dtype=np.int64) for name, values in numbers.items()}
    size = len(arrays["sync_ns"])
    table = Table(variables=(0,), **arrays)  # type: ignore[arg-type]
    block = Segment(name="block", domains=(size,), tables=(table,))
    root = Segment(name="root", domains=(1,), tables=(Table(variables=(0,), sync_ns=np.array([5])),))
    chain = Chain(segment=block, count=count, inputs=(), outputs=(), root_inputs=(), root_outputs=())
    return Problem(root=root, chains=(chain,))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_is_faster(seed: int) -> None:
    problem = independent(seed)
    for budget in budgets(problem):
        bound, best = listed_bound_ns(problem, budget), best_objective(problem, memory_bytes=budget)
        assert bound is not None
        assert best is None or bound <= best
        if budget == AMPLE:
            assert bound == pytest.approx(math.inf if best is None else best)


def test_it_is_as_high_as_what_multipliers_prove() -> None:
    higher = 0
    for seed in SEEDS:
        problem = independent(seed, transient=False)
        for budget in budgets(problem):
            solver = solver_of(problem, memory_bytes=budget)
            found = solver.solution(0)
            bound = listed_bound_ns(problem, budget)
            assert bound is not None
            assert found.status == "infeasible" or bound >= solver.bound_ns - 1
            higher += bound > solver.bound_ns + 1
    assert higher  # than at few multipliers


def test_calls_of_one_block_differ_where_memory_asks_for_it() -> None:
    problem = calls(100, sync_ns=[10, 30, 25], bytes=[10, 2, 8])
    assert listed_bound_ns(problem, 600) == pytest.approx(5 + 50 * 10 + 50 * 30)
    assert listed_bound_ns(problem, 200) == pytest.approx(5 + 100 * 30)
    assert listed_bound_ns(problem, 199) == math.inf


@pytest.mark.parametrize("most", [3, 7, 11])
def test_bytes_that_do_not_divide_by_calls_still_fit(most: int) -> None:
    """What mixtures of choices hold is no whole number of bytes."""
    for count in (3, 7, 61):
        problem = calls(count, sync_ns=[10, 30], bytes=[10**9 + most, 10**8], transient_bytes=[10**7 + 1, 10**6 + most])
        least = count * 10**8 + 10**6 + most
        for budget in range(least, least + count * 10**8, 10**7 + 3):
            bound = listed_bound_ns(problem, budget)
            assert bound is not None
            assert 5 + count * 10 - 1 <= bound <= 5 + count * 30
        assert listed_bound_ns(problem, least - 2000) == math.inf


def test_what_is_held_in_passing_counts_once() -> None:
    problem = calls(2, sync_ns=[10], bytes=[3], transient_bytes=[4])
    assert listed_bound_ns(problem, 10) == pytest.approx(25)
    assert listed_bound_ns(problem, 9) == math.inf


def test_traffic_is_exposed_as_far_as_its_own_choice_does_not_cover_it() -> None:
    problem = calls(1, sync_ns=[100, 90], hide_ns=[40, 70], cover_ns=[50, 10], earlier_ns=[30, -80], ahead_ns=[5, 0])
    assert listed_bound_ns(problem, AMPLE) == pytest.approx(5 + min(100 + 25, 90 + 60))


def test_where_nothing_is_allowed_nothing_is_fast_enough() -> None:
    assert listed_bound_ns(calls(2, sync_ns=[FORBIDDEN, FORBIDDEN]), AMPLE) == math.inf


def test_it_leaves_what_segments_share_and_what_is_too_much_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    sharing = next(problem for problem in map(random_problem, SEEDS) if any(c.inputs for c in problem.chains))
    assert listed_bound_ns(sharing, AMPLE) is None
    monkeypatch.setattr(module, "MOST_CHOICES", 2)
    assert listed_bound_ns(calls(2, sync_ns=[1, 2, 3]), AMPLE) is None


def test_variables_without_a_choice_may_be_many() -> None:
    """As where all but a few operations of a large main graph may be placed in one way alone."""
    tables = [Table(variables=(at, at + 1), sync_ns=np.array([[1]])) for at in range(98)]
    tables.append(Table(variables=(99, 98), sync_ns=np.array([[7], [9]]), bytes=np.array([[5], [3]])))
    root = Segment(name="root", domains=(*[1] * 99, 2), tables=tuple(tables))
    problem = replace(calls(1, sync_ns=[10]), root=root)
    assert listed_bound_ns(problem, 5) == pytest.approx(98 + 7 + 10)
    assert listed_bound_ns(problem, 4) == pytest.approx(98 + 8 + 10)
    assert listed_bound_ns(problem, 2) == math.inf
