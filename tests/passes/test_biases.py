"""A bias costs nothing forward where the product before it adds it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autopar

# Each sum takes a second, forward and backward; nothing else takes a thousandth of one.
SECOND = '[op."aten.add.Tensor"]\nbytes = [1e12]\nseconds = [1.0]\n'


class Layers(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(8, 8), way

    def forward(self, x: Tensor) -> Tensor:
        product = nn.functional.linear(x, self.layer.weight)
        if self.way == "read twice":
            return (product + self.layer.bias).tanh().mean() + product.mean()
        if self.way == "in between":
            return (product.tanh() + self.layer.bias).mean()
        return self.layer(x).tanh().mean() if self.way == "linear" else (x @ self.layer.weight + self.layer.bias).mean()


@pytest.mark.parametrize(
    ("way", "seconds"), [("linear", 1), ("matmul", 1), ("in between", 2), ("read twice", 4)]
)
def test_a_sum_is_priced_where_it_runs(way: str, seconds: int, tmp_path: Path) -> None:
    profile = tmp_path / "second.toml"
    profile.write_text(SECOND)
    plan = autopar.plan(
        Layers(way), {"x": torch.randn(8, 8)}, cluster="1x1xCPU", profile=profile, num_microbatches=1, recompute="none"
    )
    assert plan.step_time_s.compute == pytest.approx(seconds, abs=1e-2)
