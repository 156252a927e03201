"""Numbers of microbatches that a model cannot take are found out once, not on every mesh."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.ir.errors import UnsupportedError
from autopar.passes.build import build


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
