"""The simulator is a second opinion: it agrees with the objective, or says in which parts of a step it does not."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest

from autopar.arguments import check
from autopar.compiling import ready
from autopar.cost_model.simulator import Comparison, Timeline, compare, document, simulate
from autopar.finding import find_plan, pipeline_of
from autopar.ir.plan import Plan
from autopar.zoo import find
from tests.families import FAMILIES
from tests.parity.planned import NETWORKS

STREAMS = str(NETWORKS / "streams.toml")
ROUNDING = 1e-5  # prices are whole ns


def simulated(model: Any, inputs: Any, **options: Any) -> tuple[Plan, Timeline, Comparison]:
    arguments = check(**{"name": "model", **options})
    readied = ready(model, inputs, arguments)
    plan, program = find_plan(readied, arguments)
    timeline = simulate(
        program, arguments.cluster, arguments.profile, optimizer=plan.optimizer, pipeline=pipeline_of(plan, program)
    )
    return plan, timeline, compare(timeline, plan)


SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "zero3": ("gpt2", {"cluster": "1x4xCPU", "mesh": {"dp": 4}, "zero": 3, "num_microbatches": 2}),
    "recompute": ("llama", {"cluster": "1x4xCPU", "mesh": {"dp": 2, "tp": 2}, "recompute": "full"}),
    "pipeline": ("gpt2", {"cluster": "1x4xCPU", "mesh": {"pp": 2, "dp": 2}, "schedule": "gpipe"}),
    "tensor-parallel": ("gpt2", {"cluster": "1x2xCPU", "mesh": {"tp": 2}}),
    "two-nodes": ("gpt2", {"cluster": "2x2xCPU", "mesh": {"dp": 4}, "zero": 2, "num_microbatches": 2}),
}


@functools.cache
def small(name: str) -> tuple[Plan, Timeline, Comparison]:
    family, options = SMALL[name]
    found = FAMILIES[family]
    return simulated(found.build(), found.batch(), profile=STREAMS, loss_fn=found.loss_fn, **options)


def assert_explained(found: Comparison) -> None:
    """Causes add up to the difference within 1 %, and the simulated parts to the simulated step."""
    assert abs(found.unexplained_s) <= 1e-9 * found.objective_s, found
    assert sum(row.simulated_s for row in found.rows) == pytest.approx(found.simulated_s, rel=1e-6)
    explained_s = sum(row.difference_s for row in found.rows)
    assert explained_s == pytest.approx(found.difference_s - found.unexplained_s, abs=1e-6 * found.simulated_s)


@pytest.mark.parametrize("case", SMALL)
def test_what_the_two_differ_in_adds_up(case: str) -> None:
    _, _, found = small(case)
    assert_explained(found)


def test_full_recomputation_costs_less_than_a_forward() -> None:
    """The objective counts all of it; torch stops before the last product."""
    _, timeline, found = small("recompute")
    (account,) = timeline.places
    assert 0 < account.busy_s["recompute"] < account.busy_s["forward"]
    assert next(row for row in found.causes() if row.part == "computing").difference_s < 0


def test_sums_at_the_end_of_a_step_start_once() -> None:
    """Norms and biases of a split sequence wait for one collective, and are priced with shares of one start."""
    plan, _, found = small("tensor-parallel")
    (waiting,) = [each for each in plan.collectives if (each.axis, each.phase) == ("tp", "grad")]
    (row,) = [row for row in found.rows if row.part == "sums at the end of the step"]
    assert waiting.count == 1 and waiting.bytes > 8 * 64 * 4  # as many norms as a layer has, at least
    assert row.simulated_s / 2 < row.objective_s <= row.simulated_s


def test_a_bubble_is_what_places_wait_for_each_other() -> None:
    plan, timeline, _ = small("pipeline")
    assert plan.step_time_s.bubble > 0
    assert all(account.bubble_s > 0 for account in timeline.places) and len(timeline.places) == 2
    for account in timeline.places:
        told_s = sum(account.busy_s.values()) + account.exposed_s + account.bubble_s
        assert told_s == pytest.approx(timeline.step_s)


def test_gradients_of_tied_parameters_are_added_up_between_places() -> None:
    """GPT-2's embedding is that of its head, too: one sum at the end of a step, which the objective has."""
    _, timeline, found = small("pipeline")
    row = next(row for row in found.rows if row.part == "sums at the end of the step")
    assert all(account.waits_s["sums"] > 0 for account in timeline.places)
    assert row.objective_s == pytest.approx(row.simulated_s, rel=1e-3)


def test_the_document_is_plain_data() -> None:
    _, timeline, found = small("zero3")
    told = document(timeline, found)
    assert told["simulated_s"] == timeline.step_s and told["objective_s"] == found.objective_s
    assert [part["part"] for part in told["parts"]] == [row.part for row in found.rows]
    assert told["places"][0]["busy_s"]["forward"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cluster", "options"),
    [
        ("gpt2", "1x8xH100-SXM", {}),
        ("bert-large", "1x8xH100-SXM", {"mixed_precision": "bf16"}),
        ("vit-large", "1x8xH100-SXM", {"mixed_precision": "bf16"}),
        ("t5-large", "1x8xH100-SXM", {"mixed_precision": "bf16"}),
        ("whisper-large", "1x8xH100-SXM", {"mixed_precision": "bf16"}),
        ("resnet50-100k", "1x8xH100-SXM", {}),
        ("llama3-8b", "2x8xH100-SXM", {"mixed_precision": "bf16"}),
        ("llama3-70b", "8x8xH100-SXM", {"mixed_precision": "bf16"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_the_zoo_agrees_with_the_objective(name: str, cluster: str, options: dict[str, Any]) -> None:
    _, _, found = simulated(*find(name).build(), cluster=cluster, **options)
    assert abs(found.difference_s) <= 0.05 * found.objective_s
    assert_explained(found)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
def test_pipelines_differ_from_the_objective_in_parts_that_add_up(schedule: str) -> None:
    options = {"mesh": {"pp": 4, "dp": 4}, "schedule": schedule, "num_microbatches": 8, "mixed_precision": "bf16"}
    model, inputs = find("llama3-8b").build(layers=8, seq_len=2048)
    _, _, found = simulated(model, inputs, cluster="2x8xH100-SXM", **options)
    assert_explained(found)


@pytest.mark.slow
def test_126_layers_and_64_microbatches_at_16_places_take_seconds() -> None:
    """About 2 s of processor time; the timeline tells calls."""
    options: dict[str, Any] = {"mesh": {"pp": 16, "dp": 4, "tp": 8}, "num_microbatches": 64, "mixed_precision": "bf16"}
    model, inputs = find("llama3-405b").build()
    arguments = check(name="model", cluster="64x8xH100-SXM", **options)
    plan, program = find_plan(ready(model, inputs, arguments), arguments)
    before = time.process_time()
    timeline = simulate(
        program, arguments.cluster, arguments.profile, optimizer=plan.optimizer, pipeline=pipeline_of(plan, program)
    )
    assert time.process_time() - before < 10
    assert timeline.detail == "calls" and len(timeline.places) == 16
    assert_explained(compare(timeline, plan))
