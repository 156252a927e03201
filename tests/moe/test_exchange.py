"""Tokens sent to the experts of other processes and back: the same as all experts on one device."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests import harness
from tests.moe import plain
from tests.moe.exchanging import RANKS, ROUTINGS, run, seed, whole

CASES = [(name, transposed, again) for name in ROUTINGS for transposed, again in ((False, False), (True, True))]


@functools.cache
def launched() -> list[list[list[Tensor]]]:
    return harness.run_processes(RANKS, harness.each, [(run, case) for case in CASES], timeout_s=120)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_row_comes_back(case: tuple[str, bool, bool]) -> None:
    """Results, and gradients of tokens, weights, both projections and the bias, whatever the router chose."""
    routing, transposed, _ = case
    given = whole(routing, transposed=transposed)
    expected = plain.experts(*given, how="silu-glu", transposed=transposed)
    leaves = [x for x in given if x.requires_grad]
    wanted = [torch.zeros_like(x) for x in leaves]
    if expected.requires_grad:
        wanted = list(torch.autograd.grad(expected, leaves, seed(expected.shape[1]), materialize_grads=True))
    found = [by_case[CASES.index(case)] for by_case in launched()]
    for parts, one in zip(zip(*found, strict=True), [expected.detach(), *wanted], strict=True):
        torch.testing.assert_close(torch.cat(parts), one, rtol=1e-12, atol=1e-11)
