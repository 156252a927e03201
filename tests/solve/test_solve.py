"""What ``solve`` promises, one behaviour a test."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from autopar.passes.problem import FORBIDDEN, Chain, Problem, Segment, Table
from autopar.passes.solve import solve, solver_of
from autopar.passes.solve.brute import least_memory
from tests.solve.instances import random_problem, unroll
from tests.solve.layers import layer_stack

AMPLE = 1 << 40

FINGERPRINT = """
from autopar.passes.solve import solve
from tests.solve.layers import layer_stack
problem = layer_stack(3, count=20, variables=12, size=5, shared=True)
print([repr(solve(problem, memory_bytes=m)) for m in (1 << 50, 3_000_000_000)])
"""


def one_table(sync: list[int], **more: list[int]) -> Segment:
    arrays = {name: np.array(values, dtype=np.int64) for name, values in more.items()}
    table = Table(variables=(0,), sync_ns=np.array(sync, dtype=np.int64), **arrays)  # type: ignore[arg-type]
    return Segment(name="one", domains=(len(sync),), tables=(table,))


def two_speeds(count: int) -> Problem:
    """Calls that take 10 ns and 10 bytes or 30 ns and 2 bytes; they carry nothing."""
    block = one_table([10, 30], bytes=[10, 2])
    chain = Chain(segment=block, count=count, inputs=(), outputs=(), root_inputs=(), root_outputs=())
    return Problem(root=one_table([5]), chains=(chain,))


def test_traffic_hides_behind_the_compute_of_its_own_instance_only() -> None:
    block = one_table([0], hide_ns=[50])
    chain = Chain(segment=block, count=2, inputs=(), outputs=(), root_inputs=(), root_outputs=())
    problem = Problem(root=one_table([0], cover_ns=[1000]), chains=(chain,))
    assert solve(problem, memory_bytes=0).objective_ns == 100


def test_traffic_of_every_microbatch_hides_behind_its_own_and_what_comes_once_behind_the_last() -> None:
    """Three microbatches that compute 100 ns each: 40 ns of traffic each and 70 once; and 120 each and 70 once."""
    few = one_table([300], hide_ns=[40 + 70], cover_ns=[100], earlier_ns=[2 * (40 - 100)])
    many = one_table([300], hide_ns=[120 + 70], cover_ns=[100], earlier_ns=[2 * (120 - 100)])
    assert solve(Problem(root=few), memory_bytes=0).objective_ns == 300 + 10
    assert solve(Problem(root=many), memory_bytes=0).objective_ns == 300 + 3 * 20 + 70


def test_calls_of_one_chain_differ_where_memory_asks_for_it() -> None:
    answer = solve(two_speeds(100), memory_bytes=600)
    assert (answer.status, answer.objective_ns, answer.bytes) == ("optimal", 5 + 50 * 10 + 50 * 30, 600)
    assert sorted(answer.calls[0]) == [(50, (0,)), (50, (1,))]


def test_only_the_largest_transient_counts() -> None:
    block = one_table([10, 30], transient_bytes=[100, 40])
    chain = Chain(segment=block, count=5, inputs=(), outputs=(), root_inputs=(), root_outputs=())
    problem = Problem(root=one_table([0], bytes=[7]), chains=(chain,))
    assert [solve(problem, memory_bytes=m).objective_ns for m in (107, 106, 47)] == [50, 150, 150]
    assert solve(problem, memory_bytes=46).status == "infeasible"


def test_folded_chain_costs_what_its_unrolled_copy_costs() -> None:
    for seed in range(40):
        folded = random_problem(seed, most_calls=7, hidden=False, transient=False)
        flat = unroll(folded)
        for memory in (AMPLE, 400, 200, 120):
            a, b = solve(folded, memory_bytes=memory), solve(flat, memory_bytes=memory)
            assert (a.status, a.found) == (b.status, b.found)
            if a.status == "optimal":
                assert a.objective_ns == b.objective_ns


def test_elimination_alone_leaves_a_gap_that_the_master_closes() -> None:
    problem = two_speeds(7)
    alone = solve(problem, memory_bytes=33, effort=0)
    assert alone.status == "feasible"
    assert alone.gap > 0.01
    closed = solve(problem, memory_bytes=33)
    assert (closed.status, closed.closed_by, closed.objective_ns) == (
        "optimal",
        "master",
        5 + 2 * 10 + 5 * 30,
    )


def test_less_memory_is_never_faster() -> None:
    for seed in range(20):
        problem = random_problem(seed)
        answers = [solve(problem, memory_bytes=m) for m in (AMPLE, 250, 200, 150, 100)]
        times = [a.objective_ns for a in answers if a.status == "optimal"]
        assert times == sorted(times)


def test_infeasible_names_the_least_memory_that_anything_needs() -> None:
    answer = solve(two_speeds(10), memory_bytes=19)
    assert (answer.status, answer.least_bytes, answer.bytes) == ("infeasible", 20, 20)
    for seed in range(30):
        problem = random_problem(seed)
        needed = least_memory(problem)
        answer = solve(problem, memory_bytes=-1)
        assert answer.status == "infeasible"
        assert answer.found == (needed is not None)
        if needed is not None:
            assert answer.least_bytes <= needed <= answer.bytes


def test_forbidden_everywhere_is_infeasible_without_an_assignment() -> None:
    problem = Problem(root=one_table([FORBIDDEN, FORBIDDEN + 5]))
    answer = solve(problem, memory_bytes=AMPLE)
    assert (answer.status, answer.found, answer.root) == ("infeasible", False, ())


def test_upper_bound_ends_the_search_with_a_valid_bound() -> None:
    problem = two_speeds(100)
    answer = solve(problem, memory_bytes=600, upper_bound_ns=900)
    assert answer.status == "dominated"
    assert 900 <= answer.bound_ns <= 2005
    assert solver_of(problem, memory_bytes=600).free_bound_ns == 1005


def test_same_problem_same_answer_whatever_the_hash_seed() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_same_problem_twice_gives_the_same_answer() -> None:
    problem = random_problem(17, scale=10_000)
    a, b = (solve(problem, memory_bytes=60_000) for _ in range(2))
    assert asdict(a) == asdict(b)


def test_depth_costs_no_evaluations() -> None:
    shallow, deep = (layer_stack(1, count=n, variables=20, size=6) for n in (2, 2000))
    answers = [solve(p, memory_bytes=1 << 60) for p in (shallow, deep)]
    assert [a.status for a in answers] == ["optimal", "optimal"]
    assert answers[0].evaluations == answers[1].evaluations
    assert len(answers[1].calls[0]) < 10


@pytest.mark.parametrize("shared", [False, True])
def test_deep_stack_is_solved_whether_memory_binds_or_not(shared: bool) -> None:
    problem = layer_stack(1, shared=shared)
    free = solve(problem, memory_bytes=1 << 50)
    tight = solve(problem, memory_bytes=free.bytes * 7 // 10, gap=1e-4)
    assert (free.status, free.closed_by) == ("optimal", "elimination")
    assert tight.status == "optimal"


def test_negative_time_and_bytes_are_credits() -> None:
    root = one_table([-5, 10], bytes=[-3, 0])
    answer = solve(Problem(root=root), memory_bytes=0)
    assert (answer.status, answer.objective_ns, answer.bytes) == ("optimal", -5, -3)


def test_chain_may_share_what_it_carries_and_return_to_the_same_root_variable() -> None:
    block = Segment(
        name="loop",
        domains=(2, 2, 2),
        tables=(
            Table(variables=(0, 1), sync_ns=np.array([[9, 1], [1, 9]])),
            Table(variables=(1, 2), sync_ns=np.array([[0, 2], [2, 0]])),
        ),
    )
    chain = Chain(
        segment=block,
        count=3,
        inputs=(0,),
        outputs=(1,),
        root_inputs=(0,),
        root_outputs=(0,),
        shared=(2,),
        root_shared=(0,),
    )
    problem = Problem(root=one_table([0, 0]), chains=(chain,))
    answer = solve(problem, memory_bytes=0)
    flat = solve(unroll(replace(problem)), memory_bytes=0)
    assert answer.status == flat.status == "optimal"
    assert answer.objective_ns == flat.objective_ns == 13
