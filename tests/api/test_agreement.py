"""Ranks that disagree, and a rank 0 that fails, end with one error on every rank and without a hang."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

import autopar
from tests.api import ranks
from tests.api.unequal import weights_of_each_rank
from tests.harness import run_processes


@functools.cache
def ended(folder: Path) -> list[dict[str, tuple[str, str]]]:
    """How every call ended, by rank."""
    plan = folder / "four.json"
    autopar.plan(ranks.Net(), ranks.example(), cluster="1x4xCPU").save(plan)
    return run_processes(2, ranks.disagreements, str(plan))


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, str]]]:
    return ended(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize(
    ("what", "difference"),
    [
        ("wider on rank 1", "parameter down.weight: the plan was made for f32[8,32], the model has f32[8,64]"),
        ("renamed on rank 1", "parameter down.bias: the plan was made for f32[8], the model has none of that name"),
        ("other batch on rank 1", "input labels: the plan was made for i64[8], the model has i64[16]"),
    ],
)
def test_ranks_with_different_models_are_told_so_on_every_rank(by_rank, what, difference):
    """The rank that differs names the difference, the others that there is one."""
    assert [found[what][0] for found in by_rank] == ["MismatchError"] * 2
    assert by_rank[1][what][1] == difference
    assert "another rank" in by_rank[0][what][1]


def test_a_rank_that_cannot_trace_takes_the_others_along(by_rank):
    """Its own message is the cause, the others stop."""
    (first, _), (second, message) = (found["untraceable on rank 1"] for found in by_rank)
    assert (first, second) == ("MismatchError", "TraceError")
    assert "if self.breaks and h.sum() > 0" in message


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("untraceable on rank 0", "TraceError", "if self.breaks and h.sum() > 0"),
        ("too big", "InfeasibleError", "needs more than"),
        ("wrong mesh on rank 0", "UsageError", "dp=3 has 3 devices, the cluster has 2"),
        ("plan for four", "MismatchError", "the plan is for 4 devices, 2 processes are running"),
        ("no such plan", "FileFormatError", "absent.json: cannot be read"),
    ],
)
def test_what_fails_on_rank_0_fails_alike_on_every_rank(by_rank, what, kind, message):
    """One class and one message."""
    assert by_rank[0][what] == by_rank[1][what]
    assert by_rank[0][what][0] == kind
    assert message in by_rank[0][what][1]


def test_a_defect_on_one_rank_leaves_no_rank_waiting(by_rank):
    """An error that is not autopar's: its rank shows it, the others end too."""
    first, second = (found["defect on rank 0"] for found in by_rank)
    assert first == second == ("AutoparError", "unexpected ZeroDivisionError on rank 0: a defect")
    first, second = (found["defect on rank 1"] for found in by_rank)
    assert (first[0], second) == ("MismatchError", ("ZeroDivisionError", "a defect"))


def test_after_every_refusal_the_group_still_works(by_rank):
    """No collective is left half done."""
    assert [found["the group still works"] for found in by_rank] == [("none", "")] * 2


@pytest.mark.parametrize(
    ("what", "expected", "given"),
    [
        ("whole batch", "f32[4,16]", "f32[8,16]"),
        ("other width", "f32[4,16]", "f32[4,15]"),
        ("other dtype", "f32[4,16]", "f64[4,16]"),
        ("shard of another batch", "f32[8,16]", "f32[6,16]"),
        ("forward of another batch", "f32[4,16]", "f32[6,16]"),
    ],
)
def test_other_inputs_are_refused_on_every_rank(by_rank, what, expected, given):
    """With what was expected and what was given, before any collective."""
    for found in by_rank:
        kind, message = found[what]
        assert kind == "UsageError"
        assert f"input x: expected {expected}" in message
        assert f"given {given}" in message


def test_every_rank_trains_the_weights_of_rank_0() -> None:
    """Models drawn from unequal seeds would give gradients of no model at all, without a word."""
    (own, trained), (other, trained_too) = run_processes(2, weights_of_each_rank)
    assert not torch.equal(own, other)
    assert torch.equal(trained, own)
    assert torch.equal(trained_too, own)
