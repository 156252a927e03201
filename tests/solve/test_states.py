"""Bounds of shared states: calls that may disagree on what they share, or agree on a part of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import autopar.passes.solve.split
from autopar.passes.problem import Chain, Problem
from autopar.passes.solve import solve, solver_of
from autopar.passes.solve.brute import best_objective, outcomes
from autopar.passes.solve.split import SplitSolver
from autopar.passes.solve.states import apart
from tests.solve.instances import random_problem, random_segment
from tests.solve.layers import layer_stack

UNLIMITED = 10**12


def test_the_more_calls_agree_on_the_more_a_problem_costs() -> None:
    between = 0
    several = (p for p in map(random_problem, range(8400, 8800)) if sum(len(chain.shared) for chain in p.chains) > 1)
    for problem in itertools.islice(several, 20):
        variants = [apart(problem), apart(problem, 12), apart(problem, UNLIMITED)]
        best = [best_objective(one, memory_bytes=UNLIMITED) for one in (*variants, problem)]
        if best[-1] is None:
            continue
        assert best == sorted(x for x in best if x is not None)
        assert best[-2] == best[-1]
        sizes = [sum(len(chain.shared) for chain in one.chains) for one in variants]
        between += sizes[0] < sizes[1] < sizes[2]
    assert between > 3


def test_states_are_bounded_anew_where_calls_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autopar.passes.solve.split, "WIDE_ENTRIES", 0)
    monkeypatch.setattr(autopar.passes.solve.split, "LOOSE", 0.0)
    monkeypatch.setattr(autopar.passes.solve.split, "AGREED_ENTRIES", 12)
    agreed = 0
    for seed in range(5000, 5040):
        problem = random_problem(seed)
        best = best_objective(problem, memory_bytes=UNLIMITED)
        solver = solver_of(problem, memory_bytes=UNLIMITED)
        found = solver.solution(3)
        assert (found.status, found.objective_ns) == (("infeasible", 0) if best is None else ("optimal", best))
        agreed += isinstance(solver, SplitSolver) and bool(solver._agreed)
    assert agreed > 5


def sharing(seed: int) -> Problem:
    """One chain whose calls share three variables."""
    rng = np.random.default_rng(seed)
    root, block = random_segment(rng, "root", (3, 3, 3, 2)), random_segment(rng, "block", (2, 2, 3, 3, 3, 2))
    chain = Chain(
        segment=block, count=3, inputs=(0,), outputs=(1,), root_inputs=(3,), root_outputs=(3,), shared=(2, 3, 4),
        root_shared=(0, 1, 2),
    )  # fmt: skip
    return Problem(root=root, chains=(chain,))


def test_calls_agree_on_one_part_after_another_of_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time on what they did not agree on yet: all are mostly too many at once."""
    monkeypatch.setattr(autopar.passes.solve.split, "WIDE_ENTRIES", 0)
    monkeypatch.setattr(autopar.passes.solve.split, "LOOSE", 0.0)
    monkeypatch.setattr(autopar.passes.solve.split, "AGREED_ENTRIES", 12)
    agreed = [0, 0, 0, 0]
    for problem in map(sharing, range(20)):
        best = best_objective(problem, memory_bytes=UNLIMITED)
        assert [len(apart(problem, 12, last).chains[0].shared) for last in ({0}, {0, 1, 2})] == [1, 1]
        assert apart(problem, 12, {0, 2}).chains[0].root_shared == (1,)
        solver = solver_of(problem, memory_bytes=UNLIMITED)
        found = solver.solution(4)
        assert isinstance(solver, SplitSolver)
        assert best is not None
        assert found.bound_ns <= best == found.objective_ns
        agreed[len(solver._agreed)] += 1
    assert agreed[3] > 5


def test_little_work_first_changes_no_answer() -> None:
    for seed in range(7000, 7040):
        problem = random_problem(seed)
        if not outcomes(problem):
            continue
        solver = solver_of(problem, memory_bytes=UNLIMITED)
        before = solver.bound_ns
        solver.tighten()
        rough = solver.bound_ns
        found, fresh = solver.solution(2), solve(problem, memory_bytes=UNLIMITED)
        assert before <= rough <= found.bound_ns
        assert (found.status, found.objective_ns) == (fresh.status, fresh.objective_ns)


def test_a_search_of_multipliers_that_was_paused_is_gone_on_with() -> None:
    problem = layer_stack(4, count=12, variables=16, size=4, shared=True)
    free = solve(problem, memory_bytes=UNLIMITED, effort=0)
    budget = free.bytes // 2
    fresh = solve(problem, memory_bytes=budget, effort=1)
    solver = solver_of(problem, memory_bytes=budget)
    paused = solver.solution(0, upper_bound_ns=(free.bound_ns + fresh.objective_ns) // 2)
    found = solver.solution(1, upper_bound_ns=UNLIMITED)
    assert paused.status == "dominated"
    assert (found.status, found.objective_ns) == (fresh.status, fresh.objective_ns)
