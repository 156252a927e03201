"""Inputs that the plan was not made for, on one rank alone: every rank is told, none waits, nothing has changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.api.ranks import BATCH, Net, example, outcome, parallelize
from tests.harness import run_processes

Outcome = tuple[str, str]


def wrong_on_one(bad: int) -> dict[str, Outcome]:
    """How each call ended here, ``bad`` being the only rank that passes something else; then a step that is right."""
    torch.manual_seed(0)
    model = parallelize(Net(), mesh={"dp": dist.get_world_size()})
    torch.manual_seed(1)
    fine: Any = model.shard_inputs(example())
    rows = BATCH // dist.get_world_size()
    wrong: dict[str, Callable[[], Any]] = {
        "fewer rows": lambda: model.train_step(**example(rows - 1)),
        "wider": lambda: model.train_step(**example(rows, 15)),
        "dtype": lambda: model.train_step(x=fine["x"].double(), labels=fine["labels"]),
        "missing": lambda: model.train_step(x=fine["x"]),
        "no tensor": lambda: model.train_step(x=None, labels=fine["labels"]),
        "forward": lambda: model(**example(rows + 1)),
    }
    found = {}
    for name, call in wrong.items():
        right = model if name == "forward" else model.train_step
        found[name] = outcome(call if dist.get_rank() == bad else functools.partial(right, **fine))
    touched = any(parameter.grad is not None for parameter in model.parameters())
    found["gradients"] = ("touched" if touched else "untouched", "")
    found["a right step"] = outcome(lambda: model.train_step(**fine))
    return found


@pytest.fixture(scope="module")
def ended() -> dict[int, list[dict[str, Outcome]]]:
    """By the rank that was wrong, the outcomes of all; a wait would end in the timeout."""
    return {bad: run_processes(2, wrong_on_one, bad, timeout_s=60) for bad in (0, 1)}


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "fewer rows",
            "input x: expected f32[4,16] (this rank's part of f32[8,16]), given f32[3,16]; "
            "pad_inputs(batch) fills up a smaller batch",
        ),
        ("wider", "input x: expected f32[4,16] (this rank's part of f32[8,16]), given f32[4,15]"),
        ("dtype", "input x: expected f32[4,16] (this rank's part of f32[8,16]), given f64[4,16]"),
        ("missing", "input labels is missing; the inputs are x, labels"),
        (
            "no tensor",
            "input x: given None, the example inputs had tensor; what is no tensor is a constant of the program",
        ),
        ("forward", "input x: expected f32[4,16] (this rank's part of f32[8,16]), given f32[5,16]"),
    ],
)
def test_a_wrong_input_on_one_rank_is_an_error_on_both(ended, bad, what, message):
    """Naming the input, what was expected and what was given; on the other rank also which rank it was."""
    of_bad, of_other = (ended[bad][rank][what] for rank in (bad, 1 - bad))
    assert of_bad == ("UsageError", message)
    assert of_other == ("UsageError", f"rank {bad}: {message}")


@pytest.mark.parametrize("bad", [0, 1])
def test_after_it_nothing_has_changed_and_training_goes_on(ended, bad):
    for found in ended[bad]:
        assert found["gradients"] == ("untouched", "")
        assert found["a right step"] == ("none", "")


def two_wrong() -> Outcome:
    model = parallelize(Net(), mesh={"dp": 4})
    rows = {1: 3, 3: 5}.get(dist.get_rank(), BATCH // 4)
    return outcome(lambda: model.train_step(**example(rows)))


def test_of_several_wrong_ranks_each_tells_its_own_and_the_rest_the_first():
    found = run_processes(4, two_wrong)
    assert [kind for kind, _ in found] == ["UsageError"] * 4
    given = [message.split("given ")[1].split(";")[0] for _, message in found]
    assert given == ["f32[3,16]", "f32[3,16]", "f32[3,16]", "f32[5,16]"]
    assert [message.startswith("rank 1: ") for _, message in found] == [True, False, True, False]
