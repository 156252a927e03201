"""A pipeline is found where it pays, without being asked for, and left out where it cannot be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar.errors import UnsupportedError
from autopar.passes import cutting, piped


class Wide(nn.Module):
    """Equal layers with many parameters and few activations: what a slow network lets only a pipeline split."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x.square().sum()


class TiedEnds(nn.Module):
    """The same with one weight before its layers and behind them, as an embedding and its head have."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = Wide(layers).layers
        self.weight = nn.Parameter(torch.zeros(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x[:, :32], self.weight)
        for layer in self.layers:
            x = F.relu(layer(x))
        return torch.matmul(x, self.weight).square().sum()


def planned(folder: Path, model: nn.Module | None = None, **options: Any) -> autopar.Plan:
    profile = folder / "slow.toml"
    profile.write_text(
        "[device.Slow]\nfp32_tflops = 1e-4\nmemory_gb = 1\nmemory_tb_s = 1e-3\nintra = 'near'\ninter = 'far'\n"
        "nics_per_node = 1\n[link.near]\nbandwidth_gb_s = 1\nlatency_us = 0.01\n"
        "[link.far]\nbandwidth_gb_s = 2e-3\nlatency_us = 0.01\n"
    )
    inputs = (torch.zeros(16, 64),)
    return autopar.plan(model or Wide(8), inputs, cluster="2x1xSlow", profile=str(profile), **options)


def test_a_pipeline_is_found_where_it_pays(tmp_path: Path) -> None:
    free = planned(tmp_path)
    assert free.mesh == {"pp": 2, "dp": 1}
    assert free.schedule == "1f1b"
    assert free.num_microbatches > 1
    assert free.objective_s < min(planned(tmp_path, mesh={axis: 2}).objective_s for axis in ("dp", "tp"))
    assert free.objective_s <= planned(tmp_path, mesh={"pp": 2}).objective_s


def test_what_both_ends_of_a_pipeline_have_is_in_its_time_and_in_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients go over a network of 2 MB/s after all has been computed."""
    plan = planned(tmp_path, TiedEnds(8), mesh={"pp": 2})
    between = [each for each in plan.collectives if (each.kind, each.axis) == ("all_reduce", "pp")]
    assert [each.bytes for each in between] == [64 * 32 * 4]
    assert plan.lower_bound_s <= plan.objective_s and plan.gap < 0.05
    monkeypatch.setattr(piped, "least_ns", lambda *_: 0)
    without = planned(tmp_path, TiedEnds(8), mesh={"pp": 2})
    assert plan.lower_bound_s - without.lower_bound_s == pytest.approx(64 * 32 * 4 / 2e6, rel=0.01)


def test_what_cannot_be_cut_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("a buffer changes in one stage and is read in another")

    monkeypatch.setattr(cutting, "copies_bytes", refuse)
    assert "pp" not in planned(tmp_path).mesh or planned(tmp_path).mesh["pp"] == 1
    with pytest.raises(UnsupportedError, match="a buffer changes"):
        planned(tmp_path, mesh={"pp": 2})
