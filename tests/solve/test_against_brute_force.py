"""Bound <= true optimum <= objective, on small random problems, against trying everything."""

from __future__ import annotations

from functools import partial

import pytest

import autopar.passes.solve.solver
import autopar.passes.solve.split
from autopar.passes.problem import Problem
from autopar.passes.solve import Solution, solve
from autopar.passes.solve.brute import outcomes
from autopar.passes.solve.check import measure_assignment
from autopar.passes.solve.model import Model
from tests.solve.instances import random_problem

AMPLE = 1 << 40


def limits(found: set[tuple[int, int, int]]) -> list[int]:
    """No limit, just none, two that bite, the least that works, and one byte less."""
    needs = sorted(b + w for _, b, w in found)
    low, high = needs[0], needs[-1]
    return sorted({AMPLE, high, (low + high) // 2, (3 * low + high) // 4, low, low - 1})


def check_one(problem: Problem, found: set[tuple[int, int, int]], memory: int, answer: Solution) -> None:
    best = min((t for t, b, w in found if b + w <= memory), default=None)
    assert answer.least_bytes <= min(b + w for _, b, w in found)
    totals = measure_assignment(problem, answer.root, answer.calls)
    assert (totals.objective_ns, totals.bytes) == (answer.objective_ns, answer.bytes)
    if best is None:
        assert answer.status in ("infeasible", "unknown")
        return
    assert answer.status != "infeasible"
    assert answer.bound_ns <= best
    if answer.status != "unknown":
        assert answer.bytes <= memory
        assert best <= answer.objective_ns
    if answer.status == "optimal":
        assert answer.objective_ns == best


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_effort_is_enough_to_prove_every_small_problem_optimal_or_infeasible(first: int) -> None:
    for seed in range(first, first + 20):
        problem = random_problem(seed)
        found = outcomes(problem)
        if not found:
            answer = solve(problem, memory_bytes=AMPLE)
            assert (answer.status, answer.found) == ("infeasible", False)
            continue
        for memory in limits(found):
            answer = solve(problem, memory_bytes=memory)
            check_one(problem, found, memory, answer)
            assert answer.status in ("optimal", "infeasible")


@pytest.mark.parametrize("effort", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_little_effort_still_gives_valid_bounds(effort: int) -> None:
    for seed in range(1000, 1080):
        problem = random_problem(seed)
        found = outcomes(problem)
        for memory in limits(found) if found else ():
            check_one(problem, found, memory, solve(problem, memory_bytes=memory, effort=effort))


def test_longer_chains_and_numbers_of_real_size() -> None:
    for seed in range(2000, 2060):
        problem = random_problem(seed, most_calls=9, scale=300_000_000)
        found = outcomes(problem)
        for memory in limits(found) if found else ():
            answer = solve(problem, memory_bytes=memory, gap=0.0)
            check_one(problem, found, memory, answer)
            assert answer.status in ("optimal", "infeasible")


def test_branching_above_the_table_cap_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autopar.passes.solve.solver, "Model", partial(Model, cap_entries=20))
    for seed in range(3000, 3040):
        problem = random_problem(seed)
        found = outcomes(problem)
        for memory in limits(found) if found else ():
            check_one(problem, found, memory, solve(problem, memory_bytes=memory))


@pytest.mark.parametrize("by_state", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_upper_bound_is_reported_dominated_only_when_nothing_is_below_it(
    by_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_state:
        monkeypatch.setattr(autopar.passes.solve.split, "WIDE_ENTRIES", 0)
    for seed in range(4000, 4060):
        problem = random_problem(seed)
        found = outcomes(problem)
        for memory in limits(found)[1:4] if found else ():
            best = min((t for t, b, w in found if b + w <= memory), default=None)
            if best is None:
                continue
            assert solve(problem, memory_bytes=memory, upper_bound_ns=best, effort=3).status == "dominated"
            above = solve(problem, memory_bytes=memory, upper_bound_ns=best + 1, effort=3)
            assert (above.status, above.objective_ns) == ("optimal", best)


@pytest.mark.parametrize("effort", [0, pytest.param(2, marks=pytest.mark.slow), 3])
def test_states_of_what_is_shared_may_be_solved_one_by_one(effort: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autopar.passes.solve.split, "WIDE_ENTRIES", 0)
    shared = 0
    for seed in range(5000, 5040):
        problem = random_problem(seed)
        found = outcomes(problem)
        shared += any(chain.shared for chain in problem.chains)
        for memory in limits(found) if found else ():
            answer = solve(problem, memory_bytes=memory, effort=effort)
            check_one(problem, found, memory, answer)
            assert effort < 3 or answer.status in ("optimal", "infeasible")
    assert shared > 6
