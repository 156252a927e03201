"""Real processes draw what one process draws: in every step, under recomputation, with microbatches, in ``forward``."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from autopar.runtime.parity import compare
from tests.harness import each, run_processes
from tests.randomness.dropped import TOLERANCES
from tests.randomness.processes import Run, evaluated, trained

QUICK = [
    Run(model="gpt2", mesh={"dp": 2}, options={"recompute": "full", "zero": 3}),
    Run(model="gpt2", mesh={"tp": 2}, options={"recompute": "selective", "num_microbatches": 2}),
    Run(model="gpt2", mesh={"dp": 2, "tp": 2}, options={"recompute": "none"}),
]
SLOW = [
    Run(model="gpt2", mesh={"tp": 2}, options={"num_microbatches": 2, "recompute": "full"}),
    Run(model="gpt2", mesh={"dp": 2}, options={"recompute": "selective", "zero": 2, "num_microbatches": 2}),
    Run(model="gpt2", mesh={"tp": 2}, options={"recompute": "selective"}),
    *(
        Run(model="gpt2", mesh=mesh, options={"recompute": recompute, "zero": zero, "num_microbatches": n})
        for mesh, n in (({"dp": 4}, 2), ({"dp": 2, "tp": 2}, 4))
        for recompute, zero in (("none", 1), ("selective", 2), ("selective", 3), ("full", 1))
    ),
    Run(model="bert", mesh={"dp": 2, "tp": 2}, options={"num_microbatches": 2, "recompute": "full"}),
    Run(model="llama", mesh={"dp": 2, "tp": 2}, options={"num_microbatches": 2}),
    Run(model="switch", mesh={"ep": 2}, options={"recompute": "selective"}),
    Run(model="switch", mesh={"dp": 2, "ep": 2}, options={"zero": 3}),
    Run(model="switch", mesh={"ep": 2, "tp": 2}, options={"recompute": "full"}),
]


@functools.cache
def alone(model: str) -> dict[str, Any]:
    (found,) = run_processes(1, trained, Run(model=model))
    return dict(found)


@functools.cache
def together(world: int, *, slow: bool = False) -> dict[str, list[dict[str, Any]]]:
    """What every rank found, by run."""
    runs = [run for run in (SLOW if slow else QUICK) if run.world_size == world]
    ranks = run_processes(world, each, [(trained, (run,)) for run in runs], timeout_s=300)
    return {str(run): [found[at] for found in ranks] for at, run in enumerate(runs)}


@pytest.mark.parametrize("run", [*QUICK, *(pytest.param(run, marks=pytest.mark.slow) for run in SLOW)], ids=str)
def test_processes_draw_what_one_process_draws(run: Run) -> None:
    expected = alone(run.model)
    tolerance = TOLERANCES.get(run.model, 1e-10)
    for found in together(run.world_size, slow=run in SLOW)[str(run)]:
        for at, (loss, gradients) in enumerate(zip(expected["losses"], expected["gradients"], strict=True)):
            compare({"loss": found["losses"][at]}, {"loss": loss}, tol=tolerance, what=f"loss of step {at}")
            compare(found["gradients"][at], gradients, tol=tolerance, what=f"gradients of step {at}")
    if "recompute" in run.options:
        assert set(found["recompute"].values()) == {"none", run.options["recompute"]}


def test_every_step_draws_anew_and_the_count_can_be_set() -> None:
    found = alone("gpt2")
    assert len({float(loss) for loss in found["losses"]}) == 3
    assert (found["seed"], found["step"]) == (40, 3)
    assert torch.equal(found["second step again"], found["losses"][1])


def test_all_ranks_use_the_seed_of_the_first() -> None:
    assert {found["seed"] for ranks in together(2).values() for found in ranks} == {40}


def test_a_bare_program_that_drops_is_no_evaluation() -> None:
    (found,) = run_processes(1, evaluated)
    assert "made in training mode, draws random numbers (dropout)" in found
