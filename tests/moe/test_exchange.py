"""Tokens sent to the experts of other processes and back: the same as all experts on one device."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests import harness
from tests.moe import plain
from tests.moe.exchanging import EXPERTS, RANKS, ROUTINGS, over_two_axes, run, seed, whole

WAYS = ("flat", "in two steps")
HOW = ((torch.float64, False, False), (torch.float64, True, True), (torch.float32, True, False))
CASES = [(name, *how) for name in ROUTINGS for how in HOW]
Case = tuple[str, torch.dtype, bool, bool]


@functools.cache
def launched() -> list[list[dict[str, list[Tensor]]]]:
    return harness.run_processes(RANKS, harness.each, [(run, case) for case in CASES], timeout_s=120)


def of(case: Case, way: str) -> list[list[Tensor]]:
    """What each rank found."""
    return [by_case[CASES.index(case)][way] for by_case in launched()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_row_comes_back(case: Case, way: str) -> None:
    """Results, and gradients of tokens, weights, both projections and the bias, whatever the router chose."""
    routing, dtype, transposed, _ = case
    given = whole(routing, dtype, transposed=transposed)
    expected = plain.experts(*given, how="silu-glu", transposed=transposed, kept_factor=1.25 if transposed else 1.0)
    leaves = [x for x in given if x.requires_grad]
    wanted = [torch.zeros_like(x) for x in leaves]
    if expected.requires_grad:
        wanted = list(torch.autograd.grad(expected, leaves, seed(expected), materialize_grads=True))
    rtol, atol = (1e-12, 1e-11) if dtype == torch.float64 else (1e-5, 1e-4)
    for parts, one in zip(zip(*of(case, way), strict=True), [expected.detach(), *wanted], strict=True):
        torch.testing.assert_close(torch.cat(parts), one, rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_steps_give_the_bits_of_one(case: Case) -> None:
    """Inside the node and then across: the same rows in the same order, on 2 x 2 ranks with uneven numbers."""
    for one, two in zip(of(case, "flat"), of(case, "in two steps"), strict=True):
        for first, second in zip(one, two, strict=True):
            assert torch.equal(first, second)


@functools.cache
def over_both() -> list[list[tuple[Tensor, int]]]:
    return harness.run_processes(RANKS, harness.each, [(over_two_axes, (name,)) for name in ROUTINGS], timeout_s=120)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_row_goes_to_one_device_where_experts_are_split_over_two_axes(routing: str) -> None:
    """Who has the same tokens sends those of its own experts: parts of a sum, and each choice travels once."""
    found = [rank[[*ROUTINGS].index(routing)] for rank in over_both()]
    made = torch.cat([found[0][0] + found[1][0], found[2][0] + found[3][0]])
    given = whole(routing)
    torch.testing.assert_close(made, plain.experts(*given, how="silu-glu").detach(), rtol=1e-12, atol=1e-11)
    here = int(((given[1] >= 0) & (given[1] < EXPERTS)).sum())
    assert sum(numbers for _, numbers in found) == 2 * here * given[0].shape[1]
