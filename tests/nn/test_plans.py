"""What a planner makes of the layer."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar
from autopar.nn import MoE
from tests.families.plain import Mixture

CLUSTER = "1x2xA100-SXM-80GB"


class Wide(nn.Module):
    """One layer, wide enough that its experts are worth splitting."""

    def __init__(self, **router: Any) -> None:
        super().__init__()
        self.moe = MoE(1024, 4096, 16, capacity_factor=1.0, **router)

    def forward(self, x: Tensor) -> Tensor:
        hidden, loss, _ = self.moe(x)
        made: Tensor = hidden.square().mean() + loss
        return made


ROUTERS: tuple[dict[str, Any], ...] = ({"top_k": 2, "jitter": 0.1}, {"top_k": 1, "prototypes": 2, "gate": "sigmoid"})


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_every_operation_of_a_router_has_a_rule(router: dict[str, Any], microbatches: int) -> None:
    """No island, and a batch that is cut into microbatches stays legal: no sequence needs another."""
    tokens = torch.zeros(8, 12, dtype=torch.int64)
    batch = {"input_ids": tokens, "labels": tokens}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = autopar.plan(Mixture(**router), batch, cluster=CLUSTER, mesh={"dp": 2}, num_microbatches=microbatches)
    assert plan.islands == ()


def test_k_top_1_moves_and_computes_what_top_k_does() -> None:
    """At equal capacity: the same bytes by all_to_all over ep, and the same seconds of products (M6-T)."""
    moved, seconds = [], []
    for router in ({"top_k": 2}, {"top_k": 1, "prototypes": 2}):
        with torch.device("meta"):
            model = Wide(**router)
        plan = autopar.plan(
            model, (torch.zeros(16, 512, 1024, device="meta"),), cluster="1x8xA100-SXM-80GB", mesh={"ep": 8}
        )
        moved.append(sorted((c.phase, c.bytes, c.count) for c in plan.collectives if c.kind == "all_to_all"))
        seconds.append(plan.step_time_s.compute)
    assert moved[0] == moved[1] != []
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)
