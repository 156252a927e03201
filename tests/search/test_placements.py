"""Placements of calls that a solution does not have: alike at their ends, and as good in every mode."""

from __future__ import annotations

import math

import pytest

from autopar.ir.errors import IRError, LimitReachedError
from autopar.passes.live import holding
from autopar.passes.placements import Placements
from autopar.passes.solve import Model, solve
from autopar.passes.solve.eliminate import Eliminator
from autopar.passes.solve.states import fixed
from autopar.passes.units import Cost, call_cost
from tests.search.staged import pipelines

LIVES = (4, 2)
HARDLY = 1.01  # the highest price is not all that counts


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
def test_others_begin_and_end_alike_and_are_as_good_in_every_mode(name: str) -> None:
    bounds, (pipeline, *_) = pipelines(name, "1f1b")
    made = bounds.encode(pipeline, "1f1b")
    assert made is not None
    lean, full = holding(made[0], 0), made[0]
    whole = holding(full, LIVES[0]).problem
    ample = solve(whole, memory_bytes=1 << 60)
    solution = solve(whole, memory_bytes=int(ample.bytes * 0.8))
    better = 0
    for number, known in enumerate(solution.calls):
        chain, values = full.problem.chains[number], known[0][1]
        others = Placements(full, LIVES, math.inf).like(number, values)
        ends = *chain.inputs, *chain.shared, *chain.outputs
        assert all([other[end] for end in ends] == [values[end] for end in ends] for other in others)
        for mode in range(chain.segment.domains[0]):
            try:
                own = call_cost(lean, full, number, (mode, *values[1:]))
            except IRError:
                continue  # what is kept in this mode is not to be had
            costs = [call_cost(lean, full, number, other) for other in others if other[0] == mode]
            assert min(cost.time_ns for cost in costs) <= own.time_ns
            assert min(map(held, costs)) <= HARDLY * held(own)
            better += min(cost.time_ns for cost in costs) < own.time_ns or min(map(held, costs)) < held(own)
    assert better


def held(cost: Cost) -> int:
    return cost.held_bytes + LIVES[0] * cost.saved_bytes


def test_a_block_that_is_too_entangled_as_a_whole_has_others_too() -> None:
    """Its ends are decided: it takes less than all that its calls may share at once."""
    bounds, (pipeline, *_) = pipelines("deepseek-v3", "1f1b")
    made = bounds.encode(pipeline, "1f1b")
    assert made is not None
    full = made[0]
    values = solve(full.problem, memory_bytes=1 << 60).calls[0][0][1]
    chain = full.problem.chains[0]
    border = {end: values[end] for end in (*chain.inputs, *chain.shared, *chain.outputs)}
    decided = Eliminator(fixed(chain.segment, border), kept=(0,))
    most = sum(bucket.entries for bucket in decided.plan.buckets)
    with pytest.raises(LimitReachedError, match="too entangled"):
        Model(full.problem, most_joined=most)
    assert Placements(full, LIVES, most).like(0, values)
