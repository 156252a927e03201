"""A plan with pipeline stages evaluates as the model does, and trains on as if it had not.

In each process the losses of evaluation are compared with the model's in ``eval()``, those of training, gradients and
parameters with a pipeline that never evaluates, and with one device where nothing is drawn.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests import harness
from tests.pipelines import evaluation
from tests.pipelines.evaluation import Case

PP2, PP2DP2 = {"pp": 2}, {"pp": 2, "dp": 2}
INTERLEAVED = {"schedule": "interleaved"}
TWO = [
    Case(family="gpt2", mesh=PP2), Case(family="scaled", mesh=PP2, options=INTERLEAVED),
    Case(family="scaled", mesh=PP2, planned_in="eval"),
]  # fmt: skip
FOUR = [Case(family="scaled", mesh=PP2DP2, options={"zero": 3})]
SLOW_TWO = [
    *(Case(family=family, mesh=PP2) for family in ("llama", "t5", "bert", "vit", "depth", "scaled")),
    Case(family="gpt2", mesh=PP2, options={"schedule": "gpipe"}),
    Case(family="deep gpt2", mesh=PP2, options=INTERLEAVED), Case(family="gpt2", mesh=PP2, planned_in="eval"),
]  # fmt: skip
SLOW_FOUR = [
    Case(family="gpt2", mesh=PP2DP2), Case(family="gpt2", mesh=PP2DP2, options={"zero": 3}),
    Case(family="deep gpt2", mesh=PP2DP2, options={"zero": 3, **INTERLEAVED}), Case(family="t5", mesh={"pp": 4}),
    Case(family="bert", mesh={"pp": 2, "tp": 2}), Case(family="depth", mesh=PP2DP2, options={"zero": 3}),
    Case(family="bert", mesh=PP2DP2, options={"zero": 2}, planned_in="eval"),
]  # fmt: skip
LAUNCHES = {"two": (2, TWO), "four": (4, FOUR), "more of two": (2, SLOW_TWO), "more of four": (4, SLOW_FOUR)}
SLOW = ("two", "more of two", "more of four")


@functools.cache
def launched(launch: str) -> list[list[Any]]:
    """Results by rank and case: the cases of a launch share its processes."""
    size, cases = LAUNCHES[launch]
    work: list[harness.Work] = [(evaluation.run, (case,)) for case in cases]
    if launch == "two":
        work.append((evaluation.from_evaluation_of_depth, ()))
    return harness.run_processes(size, harness.each, work, timeout_s=900 if launch in SLOW else 280)


@pytest.mark.parametrize(
    ("launch", "case"),
    [
        pytest.param(launch, case, id=str(case), marks=[pytest.mark.slow, pytest.mark.timeout(1000)] * (launch in SLOW))
        for launch, (_, cases) in LAUNCHES.items() for case in cases
    ],
)  # fmt: skip
def test_a_pipeline_evaluates_and_trains_on(launch: str, case: Case) -> None:
    at = LAUNCHES[launch][1].index(case)
    ranks = [found[at] for found in launched(launch)]
    assert all(found["stages"] == ranks[0]["stages"] for found in ranks)
    assert all(not found["shared"] for found in ranks)
    if "zero" in case.options:
        assert ranks[0]["zero"] == {case.options["zero"]}
    if case.family != "scaled" or case.planned_in == "eval":
        assert ranks[0]["told"] == ""
        return
    # its layers are equal in training only: without calls of a block the program finds its stages, and has no backward
    assert ranks[0]["planned blocks"] and not ranks[0]["blocks"]
    assert all("is gathered with other parameters than in the plan's own mode" in found["told"] for found in ranks)


@pytest.mark.slow
def test_a_mode_that_the_stages_cannot_compute_is_refused_by_name() -> None:
    """A head that training alone has: its parameters are in the first stage, what they meet in the second."""
    for found in launched("two"):
        assert "the model computes something else in training mode" in found[-1]
        assert "one stage would need auxiliary." in found[-1] and "run the original model" in found[-1]
