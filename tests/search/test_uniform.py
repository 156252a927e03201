"""Alike layers are preferred where memory binds and the difference is next to nothing."""

from __future__ import annotations

import numpy as np

from autopar.passes.problem import Chain, Problem, Segment, Table
from autopar.passes.solve import solve
from autopar.passes.uniform import TOLERANCE, uniform


def _problem(fast_ns: int) -> Problem:
    """Four calls, each lean (10000 ns, 1 byte) or fast (``fast_ns``, 3 bytes)."""
    choice = Table(variables=(0,), sync_ns=np.array([10_000, fast_ns], np.int64), bytes=np.array([1, 3], np.int64))
    block = Segment(name="block", domains=(2, 1, 1), tables=(choice,))
    root = Segment(name="main", domains=(1, 1), tables=())
    chain = Chain(segment=block, count=4, inputs=(1,), outputs=(2,), root_inputs=(0,), root_outputs=(1,))
    return Problem(root=root, chains=(chain,))


def test_one_odd_call_that_gains_next_to_nothing_is_made_like_the_others() -> None:
    problem = _problem(9_990)
    odd = solve(problem, memory_bytes=6)
    alike = uniform(problem, odd, 6)
    assert len(odd.calls[0]) == 2
    assert alike.calls == (((4, (0, 0, 0)),),)
    assert odd.objective_ns < alike.objective_ns == 40_000 <= odd.objective_ns * (1 + TOLERANCE)
    assert alike.bound_ns == odd.bound_ns


def test_one_odd_call_that_pays_stays() -> None:
    problem = _problem(8_000)
    odd = solve(problem, memory_bytes=6)
    assert uniform(problem, odd, 6) == odd


def test_where_memory_is_ample_the_optimum_stands_as_it_is() -> None:
    problem = _problem(9_990)
    best = solve(problem, memory_bytes=100)
    assert uniform(problem, best, 100) == best
    assert best.objective_ns == 4 * 9_990
