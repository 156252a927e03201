"""An outer choice that is too much to solve is left out, and what it could have gained counts in the gap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import LimitReachedError
from autopar.passes import bounds
from autopar.passes.bounds import Bounds
from autopar.passes.outer import Candidate

REASON = "segment main is too entangled"


def planned(monkeypatch: pytest.MonkeyPatch, hard: tuple[tuple[str, ...], ...] | None) -> Any:
    """``hard``: names of the meshes whose problems are too much; None: all of them."""
    encode = Bounds.encode

    def encoded(self: Bounds, candidate: Candidate, *given: Any, **how: Any) -> Any:
        if hard is None or (candidate.mesh.names in hard and candidate.mesh.world_size == 4):
            raise LimitReachedError(REASON)
        return encode(self, candidate, *given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Bounds, "encode", encoded)
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        return autopar.plan(
            model, (torch.zeros(4096, 64), torch.zeros(4096, 64)), cluster="1x4xA100-SXM-80GB",
            loss_fn=nn.functional.mse_loss,
        )


def test_others_are_planned_and_the_gap_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = planned(monkeypatch, ())
    names = tuple(whole.axes)
    left = planned(monkeypatch, (names,))
    assert tuple(left.axes) != names
    assert left.objective_s >= whole.objective_s >= left.lower_bound_s
    assert left.gap > 0


def test_where_all_are_the_first_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitReachedError, match=REASON):
        planned(monkeypatch, None)


def test_what_would_take_a_search_over_is_left_out_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh that is named is worked out."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    given = model, (torch.zeros(4096, 64), torch.zeros(4096, 64))
    options: dict[str, Any] = {"cluster": "1x4xA100-SXM-80GB", "loss_fn": nn.functional.mse_loss}
    monkeypatch.setattr(bounds, "MOST_JOINED", 1)
    with pytest.raises(LimitReachedError, match=r"too entangled for a search of meshes.*name the mesh"):
        autopar.plan(*given, **options)
    assert autopar.plan(*given, mesh={"dp": 4}, **options).gap == 0
