"""One process on a GPU, under NCCL: the same results as plain torch there. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests import harness
from tests.families import FAMILIES
from tests.gpu import alone

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

OPTIONS: dict[str, Mapping[str, Any]] = {
    "microbatches and full recomputation": {"num_microbatches": 2, "recompute": "full"},
    "selective recomputation": {"recompute": "selective"},
    "compiled": {"compile": True},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains_as_with_plain_torch(name: str) -> None:
    (worst,) = harness.run_processes(1, alone.trained, name, {})
    assert worst <= FAMILIES[name].tolerance


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_options_change_nothing(name: str, options: Mapping[str, Any]) -> None:
    (worst,) = harness.run_processes(1, alone.trained, name, options, timeout_s=240)
    assert worst <= FAMILIES[name].tolerance


@pytest.mark.parametrize("options", [{}, {"mixed_precision": "bf16"}, {"compile": True}], ids=str)
@pytest.mark.parametrize("kind", ["llama", "own"])
def test_bf16_is_as_exact_as_in_plain_torch(kind: str, options: Mapping[str, Any]) -> None:
    found = harness.run_processes(1, alone.in_bf16, kind, options, timeout_s=240)[0]
    assert all(0 < times <= alone.OF_PLAIN for times in found.values()), found


def test_dropout_draws_the_same_again() -> None:
    first, second = harness.run_processes(1, alone.same_words, "gpt2")[0]
    assert first == second
    assert len(set(first)) == len(first)


def test_what_the_plan_says_of_memory_is_what_the_allocator_saw() -> None:
    found = harness.run_processes(1, alone.profiled)[0]
    assert 0 < found["compute_s"] <= found["step_s"]
    assert 0.8 <= found["planned peak"] / found["peak"] <= 1.25, found
