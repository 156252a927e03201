"""Activations of no more microbatches are held than the plan's memory counts."""

from __future__ import annotations

import pytest

from autopar.passes.pipelining import Shape
from tests import harness
from tests.pipelines.live import most_held, most_received
from tests.pipelines.processes import Case


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_stage_holds_what_its_schedule_allows(schedule: str, stages: int) -> None:
    case = Case(family="llama", mesh={"pp": stages}, options={"schedule": schedule, "num_microbatches": 8})
    found = harness.run_processes(stages, most_held, case)
    shape = Shape(schedule=schedule, places=stages, loops=1, microbatches=8)
    assert [most for _, most in found] == [shape.live(stage) for stage in range(stages)]
    if schedule == "1f1b":
        assert all(most <= stages - stage for stage, (_, most) in enumerate(found))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_what_is_received_is_let_go(schedule: str, stages: int) -> None:
    """Torch by itself keeps what it received with every microbatch."""
    case = Case(family="llama", mesh={"pp": stages}, options={"schedule": schedule, "num_microbatches": 8})
    found = harness.run_processes(stages, most_received, case)
    shape = Shape(schedule=schedule, places=stages, loops=1, microbatches=8)
    for stage, (training, evaluating) in enumerate(found):
        ends = (int(stage > 0), int(stage < stages - 1))
        assert training <= shape.received_bytes(stage, *ends) + 1  # the last one goes when the next has its buffer
        assert evaluating <= 2 * ends[0]
