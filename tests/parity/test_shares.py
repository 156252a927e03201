"""Ranks that take unequal shares of a batch train the model that one device trains (``runtime/parity``)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from autopar.runtime.parity import compare
from tests import harness
from tests.parity import processes, shares
from tests.parity.processes import Case
from tests.parity.shares import Mixed
from tests.parity.test_processes import PRELOADED

TOLERANCE = 1e-10
# microbatches of each rank, of which the first are on the faster processor
EXPECTED = {
    Mixed(model="bert", fast=1, slow=1, microbatches=2): (3, 1),
    Mixed(model="encoder", fast=1, slow=1, microbatches=4, recompute="full"): (6, 2),
    Mixed(model="gpt2", fast=2, slow=2, microbatches=2, zero=1): (3, 3, 1, 1),
}
CASES = tuple(EXPECTED)
TOLD = [pytest.param(case, marks=[pytest.mark.slow] * (case.world > 2), id=str(case)) for case in CASES]


@functools.cache
def launched(world: int) -> list[list[Any]]:
    """Results by rank and piece of work."""
    harness._context.set_forkserver_preload(PRELOADED)
    work: list[harness.Work] = [
        (shares.train, (mixed, shares.planned(mixed).to_bytes())) for mixed in CASES if mixed.world == world
    ]
    if world == 2:
        for equal in (False, True):
            mixed = Mixed(model="bert", fast=1 + equal, slow=1 - equal, microbatches=2)
            work.append((shares.dropped, (mixed, shares.planned(mixed, shares.with_dropout()).to_bytes())))
        mixed = Mixed(model="gpt2", fast=1, slow=1, microbatches=2)
        plan = shares.planned(mixed).to_bytes()
        work += [(shares.refusals, (mixed, plan)), (shares.unlabelled, (mixed, plan))]
    return harness.run_processes(world, harness.each, work, timeout_s=280)


def trained(mixed: Mixed) -> list[Any]:
    at = [other for other in CASES if other.world == mixed.world].index(mixed)
    return [by_case[at] for by_case in launched(mixed.world)]


@pytest.mark.parametrize("mixed", TOLD)
def test_training_is_that_of_one_device(mixed: Mixed) -> None:
    """Losses, gradients of two accumulated steps, the norm, and parameters after three steps of AdamW."""
    expected = processes.expected(mixed.case)
    for found in trained(mixed):
        for what in ("gradients", "state"):
            compare(found[what], expected[what], tol=TOLERANCE, what=what)
        torch.testing.assert_close(
            torch.stack(found["losses"]), torch.stack(expected["losses"]), rtol=TOLERANCE, atol=0
        )
        torch.testing.assert_close(found["norm"], expected["norm"], rtol=TOLERANCE, atol=0)
        torch.testing.assert_close(found["evaluated"], expected["forward"]["loss"], rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("mixed", TOLD)
def test_the_work_is_split_as_the_plan_says(mixed: Mixed) -> None:
    """Each rank has its own number of rows, and all matrix products are split."""
    found = trained(mixed)
    rows = 8 // (mixed.world * mixed.microbatches)
    assert [rank["rows"] for rank in found] == [rows * count for count in EXPECTED[mixed]]
    assert all(rank["shares"] == {"dp": EXPECTED[mixed]} and rank["split"] == 1 for rank in found)
    assert all(set(rank["zero"].values()) == {mixed.zero} for rank in found)
    assert len({rank["sha256"] for rank in found}) == 1


@pytest.mark.slow
def test_ranks_have_unequal_numbers_of_labels() -> None:
    """The denominator is that of the whole batch, also where a rank or a microbatch has none of it."""
    assert all(len({rank["labels"] for rank in trained(mixed)}) > 1 for mixed in (CASES[0], CASES[2]))
    case = Case(model="gpt2", mesh=None)
    model = case.build()
    expected = processes.loss_of(case, model, shares.few_labels(case))
    expected.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = [by_case[5] for by_case in launched(2)]
    assert [labels > 0 for _, _, labels in found] == [True, False]
    for loss, given, _ in found:
        torch.testing.assert_close(loss, expected.detach(), rtol=TOLERANCE, atol=0)
        compare(given, gradients, tol=TOLERANCE, what="gradients")


def test_draws_are_those_of_equal_shares() -> None:
    """A mask is the hash of an element's place in the whole batch, whoever runs it."""
    for by_case in launched(2):
        (unequal, loss, gradients), (equal, expected_loss, expected) = by_case[2:4]
        assert unequal == {"dp": (3, 1)}
        assert equal == {}
        torch.testing.assert_close(loss, expected_loss, rtol=TOLERANCE, atol=0)
        compare(gradients, expected, tol=TOLERANCE, what="gradients")


def test_what_unequal_shares_do_not_allow_is_refused() -> None:
    for rank, by_case in enumerate(launched(2)):
        said = by_case[4]
        assert said["forward"] == (
            "a plan with unequal shares of the batch has no plain forward: use train_step or eval_step"
        )
        assert f"expected i64[{(6, 2)[rank]},12] (this rank's part of i64[8,12]), given i64[1,12]" in said["rows"]
