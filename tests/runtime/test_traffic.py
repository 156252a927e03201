"""No collective is done that is not needed: accumulated microbatches, gathered parameters, recomputed blocks."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

from tests.harness import each, run_processes
from tests.parity.processes import Case
from tests.runtime.traffic import counted

MICROBATCHES = 4
LEVELS = [
    Case(model="gpt2", mesh={"dp": 2}, options={"zero": zero, "num_microbatches": MICROBATCHES, "recompute": "none"})
    for zero in (1, 2, 3)
]
MODES = [
    Case(model="bert", mesh={"tp": 2}, options={"num_microbatches": 2, "recompute": recompute})
    for recompute in ("none", "selective", "full")
]


@functools.cache
def found() -> list[dict[str, Any]]:
    work = [(counted, (case,)) for case in (*LEVELS, *MODES)]
    return list(run_processes(2, each, work, timeout_s=200)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "gathers", "scatters"), [
    (0, lambda blocks: blocks + 1, lambda blocks: blocks + 1),
    (1, lambda blocks: blocks + 1, lambda blocks: MICROBATCHES * (blocks + 1)),
    (2, lambda blocks: 2 * MICROBATCHES * blocks + 1, lambda blocks: MICROBATCHES * (blocks + 1)),
], ids=["ZeRO 1", "ZeRO 2", "ZeRO 3"])  # fmt: skip
def test_parameters_are_gathered_and_gradients_scattered_as_often_as_the_level_says(
    case: int, gathers: Any, scatters: Any
) -> None:
    """Two layers and the root are a group each: once a step, once a microbatch, or once a use.

    One gather more is that by which ranks agree on their inputs.
    """
    report = found()[case]
    assert report["holders"] == 3
    assert report["counts"]["all_gather"] == gathers(2) + 1
    assert report["counts"]["reduce_scatter"] == scatters(2)


@pytest.mark.slow
def test_selective_recomputation_sends_nothing_twice() -> None:
    """What was sent is kept; full recomputation sends it again."""
    none, selective, full = (sum(report["counts"].values()) for report in found()[len(LEVELS) :])
    assert none == selective < full


@pytest.mark.slow
def test_the_plan_lists_what_is_sent() -> None:
    """Without recomputation and with selective one, apart from the few collectives before the first microbatch."""
    for report in found()[len(LEVELS) : len(LEVELS) + 2]:
        planned: Counter[str] = Counter()
        for kind, count, _, _ in report["planned"]:
            planned[kind] += count
        extra = Counter(report["counts"])
        extra.subtract(planned)
        assert all(0 <= count <= 2 for count in extra.values()), (report["counts"], planned)


@pytest.mark.slow
def test_a_simulated_step_sends_what_a_real_one_sends() -> None:
    """At every ZeRO level and with every way to recompute, but for the sum by which ranks agree on their inputs."""
    for report in found():
        real = Counter(report["counts"])
        real.subtract(report["simulated"])
        assert +real == {"all_reduce": 1} and not -real, report


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 3])
def test_a_simulated_pipeline_sends_what_a_real_one_sends(zero: int) -> None:
    """At level 3 torch gathers for each forward, and for a backward what no backward before it has gathered."""
    options = {"zero": zero, "num_microbatches": MICROBATCHES, "recompute": "none"}
    case = Case(model="gpt2", mesh={"pp": 2, "dp": 2}, options=options)
    report = run_processes(4, counted, case, timeout_s=280)[0]
    real = Counter(report["counts"])
    real.subtract(report["simulated"])
    assert +real == {"all_reduce": 1} and not -real, report
