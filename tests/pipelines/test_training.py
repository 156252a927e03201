"""Training on pipeline stages is training the model: losses, every gradient, norm, parameters after AdamW steps.

As ``tests/parity``: float64, labels that differ in number on every sample, two accumulated ``train_step``s of
four microbatches. Stages are cut between layers, and inside of them where there are fewer layers than stages.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from autopar.runtime.parity import compare
from tests import harness
from tests.pipelines import processes
from tests.pipelines.processes import Case

PP2DP2, PP2TP2, PP4 = {"pp": 2, "dp": 2}, {"pp": 2, "tp": 2}, {"pp": 4}
FAMILIES = ("gpt2", "llama", "t5", "vit")
QUICK = [
    *(Case(family=family, mesh={"pp": 2}) for family in FAMILIES),
    *(Case(family="llama", mesh={"pp": 2}, options={"schedule": s}) for s in ("gpipe", "interleaved")),
    Case(family="deep gpt2", mesh={"pp": 2}, options={"memory_budget": 1_590_000}),  # the first stage recomputes
    Case(family="autopar.nn.MoE", mesh={"pp": 2}),  # losses of both stages, drops in each microbatch
]
# torch computes gradients of weights after those of inputs, and looks for them by the parameters of a stage
SPLIT = [Case(family="llama", mesh={"pp": 2}, options={"schedule": "zero_bubble"})]
FOUR = [
    Case(family="gpt2", mesh=PP2DP2),
    Case(family="autopar.nn.MoE, prototypes", mesh=PP2DP2),
]
SLOW_TWO = [
    *(
        Case(family="deep gpt2", mesh={"pp": 2}, options={"schedule": schedule, "recompute": recompute})
        for schedule in ("gpipe", "1f1b", "interleaved", "zero_bubble") for recompute in ("none", "selective", "full")
    ),
]  # fmt: skip
SLOW_FOUR = [
    *(
        case for family in FAMILIES for mesh in (PP2DP2, PP2TP2, PP4)
        if (case := Case(family=family, mesh=mesh)) not in FOUR
    ),
    *(
        Case(family="deep llama", mesh=PP2DP2, options={"schedule": schedule, "zero": zero})
        for schedule in ("gpipe", "1f1b", "interleaved", "zero_bubble") for zero in (0, 1, 2, 3)
        if (schedule, zero) != ("zero_bubble", 3)
    ),
    Case(family="bert", mesh={"dp": 2, "pp": 2}), Case(family="whisper", mesh=PP2TP2),
    Case(family="gemma3", mesh=PP2DP2), Case(family="swin", mesh=PP2DP2),
    Case(family="vit", mesh={"dp": 2, "tp": 2}),  # one sample a microbatch: two parameters with one gradient
]  # fmt: skip
EIGHT = [Case(family=family, mesh={"pp": 2, "dp": 2, "tp": 2}) for family in FAMILIES]
LAUNCHES = {
    "two": (2, QUICK), "split": (2, SPLIT), "four": (4, FOUR), "more of two": (2, SLOW_TWO),
    "more of four": (4, SLOW_FOUR), "eight": (8, EIGHT),
}  # fmt: skip
SLOW = ("two", "more of two", "more of four", "eight")


@functools.cache
def launched(launch: str) -> list[list[dict[str, Any]]]:
    """Results by rank and case: the cases of a launch share its processes."""
    size, cases = LAUNCHES[launch]
    work = [(processes.train, (case,)) for case in cases]
    return harness.run_processes(size, harness.each, work, timeout_s=1500 if launch in SLOW else 280)


@pytest.mark.parametrize(
    ("launch", "case"),
    [
        pytest.param(launch, case, id=str(case), marks=[pytest.mark.slow, pytest.mark.timeout(1600)] * (launch in SLOW))
        for launch, (_, cases) in LAUNCHES.items() for case in cases
    ],
)  # fmt: skip
def test_training_is_that_of_one_device(launch: str, case: Case) -> None:
    at = LAUNCHES[launch][1].index(case)
    ranks = [found[at] for found in launched(launch)]
    assert all(found["stages"] == ranks[0]["stages"] for found in ranks)
    assert ranks[0]["microbatches"] == 4
    assert ranks[0]["schedule"] == case.options.get("schedule", "1f1b" if "pp" in case.mesh else None)
    if "memory_budget" in case.options:
        assert {"none", "full"} <= set(list(ranks[0]["recompute"].values())[1:])
    elif case.family.startswith("deep"):
        assert all("/" in mark for mark in ranks[0]["stages"])  # between layers
    if "zero" in case.options:
        assert set(ranks[0]["zero"].values()) == {case.options["zero"]}


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_rank_holds_the_parameters_of_its_stages_alone(case: Case) -> None:
    at = QUICK.index(case)
    held = [set(found[at]["names"]) for found in launched("two")]
    # embedding and head, relative positions of encoder and decoder
    tied = {"gpt2": 1, "deep gpt2": 1, "t5": 3}.get(case.family, 0)
    assert len(held[0] & held[1]) <= tied
    assert held[0] - held[1] and held[1] - held[0]


DRAWING = [
    Case(family="dropout", mesh={"dp": 2}),
    *(
        Case(family="dropout", mesh={"pp": 2}, options={"recompute": recompute, "schedule": schedule})
        for recompute, schedule in (
            ("none", "1f1b"), ("full", "1f1b"), ("selective", "1f1b"), ("full", "interleaved"), ("full", "zero_bubble")
        )
    ),
]  # fmt: skip

# Cut inside of layers, where what is sent is also saved for the gradients of the stage that sends it.
INSIDE = [
    Case(family="shallow dropout", mesh={"dp": 2}),
    *(
        Case(family="shallow dropout", mesh={"pp": 2}, options={"recompute": "none", "schedule": schedule})
        for schedule in ("1f1b", "interleaved", "zero_bubble")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("drawing", [DRAWING, INSIDE], ids=["between layers", "inside of layers"])
def test_stages_draw_what_any_other_plan_draws(drawing: list[Case]) -> None:
    """Dropout, recomputed too: losses and gradients of every schedule are those of data parallelism."""
    work = [(processes.drawn, (case,)) for case in drawing]
    first, *others = harness.run_processes(2, harness.each, work, timeout_s=280)[0]
    for case, found in zip(drawing[1:], others, strict=True):
        assert case.options["recompute"] in found["recompute"]
        for step, (loss, wanted) in enumerate(zip(found["losses"], first["losses"], strict=True)):
            compare({"loss": loss}, {"loss": wanted}, tol=1e-10, what=f"{case}: loss of step {step}")
        compare(found["gradients"], first["gradients"], tol=1e-10, what=f"{case}: gradients")
