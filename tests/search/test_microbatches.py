"""Numbers of microbatches that a model cannot take are found out once, not on every mesh."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.ir.errors import UnsupportedError
from autopar.nn import MoE
from autopar.passes.build import build
from tests.search.test_free_pipelines import Wide


class Normed(nn.Module):
    """Its batch norm works across the batch and changes buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.last(self.norm(self.first(x))), y)


def test_a_number_of_microbatches_is_refused_on_one_mesh_and_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: Counter[int] = Counter()

    def counted(model: Any, found: Any, pricing: Any, count: int, **how: Any) -> Any:
        tried[count] += 1
        return build(model, found, pricing, count, **how)

    monkeypatch.setattr("autopar.passes.bounds.build", counted)
    batch = torch.zeros(64, 32), torch.zeros(64, dtype=torch.long)
    plan = autopar.plan(Normed(), batch, cluster="1x8xH100-SXM")
    assert plan.num_microbatches == 1
    assert tried[1] > 2
    assert all(times <= 2 for count, times in tried.items() if count > 1)
    with pytest.raises(UnsupportedError, match="changes the buffer norm"):
        autopar.plan(Normed(), batch, cluster="1x8xH100-SXM", num_microbatches=2)


class Centred(nn.Module):
    """Experts, and a mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.moe, self.last = nn.Linear(32, 64), MoE(64, 64, 8), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        mixed, *_ = self.moe((hidden - hidden.mean(0))[:, None])
        return nn.functional.cross_entropy(self.last(mixed[:, 0]), y)


def test_why_a_mixture_cannot_take_a_number_of_microbatches_is_told() -> None:
    """What experts alone say of it does not hide that."""
    batch = torch.zeros(64, 32), torch.zeros(64, dtype=torch.long)
    assert autopar.plan(Centred(), batch, cluster="1x8xH100-SXM").num_microbatches == 1
    with pytest.raises(UnsupportedError, match="works across the batch"):
        autopar.plan(Centred(), batch, cluster="1x8xH100-SXM", num_microbatches=2)


def test_a_pipeline_is_given_a_batch_that_no_power_of_two_divides() -> None:
    plan = autopar.plan(Wide(6), (torch.zeros(9, 64),), cluster="1x3xH100-SXM", mesh={"pp": 3})
    assert plan.num_microbatches in (3, 9)


def test_memory_that_takes_a_third_of_an_odd_batch_is_enough() -> None:
    plan = partial(autopar.plan, Wide(6), (torch.zeros(9, 4096, 64),), cluster="1x3xH100-SXM", mesh={"dp": 3})
    whole, part = (max(plan(num_microbatches=count, recompute="full").memory.peak_bytes) for count in (1, 3))
    assert part < whole
    assert plan(memory_budget=f"{(part + whole) // 2000}KB").num_microbatches == 3
