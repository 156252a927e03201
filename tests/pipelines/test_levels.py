"""Stages whose blocks and root are at different ZeRO levels: every parameter has its whole gradient."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from autopar.runtime.parity import compare
from tests import harness
from tests.pipelines.levels import gradients
from tests.state.networks import made

LEVELS = tuple(itertools.product((0, 1), (0, 1)))


@functools.cache
def found() -> list[list[Mapping[str, Tensor]]]:
    return harness.run_processes(4, harness.each, [(gradients, levels) for levels in LEVELS])


@pytest.mark.parametrize("levels", LEVELS, ids=str)
def test_every_parameter_has_its_gradient(levels: tuple[int, int]) -> None:
    model, inputs = made("scaled")
    for _ in range(2):
        model(*inputs).backward()
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for by_levels in found():
        compare(by_levels[LEVELS.index(levels)], wanted, tol=1e-10, what=f"root and blocks at {levels}")


def test_numbers_are_among_the_parameters() -> None:
    model, _ = made("scaled")
    assert [name for name, p in model.named_parameters() if not p.dim()]
    assert torch.is_tensor(model.scale)
