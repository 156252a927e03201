"""Layers that chance may leave out: traced where the chance is zero, refused where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autopar.ir.errors import TraceError
from autopar.passes.trace import trace


class Dropping(nn.Module):
    """As transformers before 5.23 asks."""

    def __init__(self, layerdrop: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.layerdrop = layerdrop

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training:
                chance = torch.rand([])
                if chance < self.layerdrop:
                    continue
            x = layer(x)
        return (self.layerdrop + x).square().mean()


@pytest.mark.parametrize("layerdrop", [0.0, 0])
def test_a_chance_of_zero_leaves_no_layer_out(layerdrop: float) -> None:
    model = Dropping(layerdrop)
    graph = trace(model, (torch.randn(2, 4),)).graph
    assert [node.target for node in graph.nodes].count("aten.linear.default") == 3
    assert model.layerdrop == layerdrop
    assert type(model.layerdrop) is type(layerdrop)


def test_another_chance_is_refused_with_the_line() -> None:
    model = Dropping(0.1)
    with pytest.raises(TraceError, match=r"if chance < self\.layerdrop"):
        trace(model, (torch.randn(2, 4),))
    assert model.layerdrop == 0.1
