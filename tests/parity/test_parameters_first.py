"""Repeated layers that begin with a parameter or a buffer: latents, learned queries, products of weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.families.family import Family
from tests.families.measure import measure

WIDTH = 8


class Weights(nn.Module):
    """A product of weights alone, then of the input with it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.parts[0]
        for part in self.parts[1:]:
            made = made @ part
        return torch.matmul(x, made).square().mean()


class Latents(nn.Module):
    """``first``: what the layers begin with; each looks at the input."""

    def __init__(self, *, learned: bool) -> None:
        super().__init__()
        first = torch.randn(16, WIDTH)
        if learned:
            self.first = nn.Parameter(first)
        else:
            self.register_buffer("first", first)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.first
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        read: Tensor = (x @ hidden.mT).softmax(-1) @ self.head(hidden)
        return (read - x).square().mean()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "weights": Weights, "latents": lambda: Latents(learned=True), "buffer": lambda: Latents(learned=False),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_may_begin_with_a_parameter(name: str) -> None:
    """They are folded as others are, and what they begin with is stored as any parameter."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return NETWORKS[name]().double()

    def batch() -> dict[str, Tensor]:
        return {"x": torch.randn(8, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))}

    family = Family(name=name, build=build, batch=batch, tolerance=1e-10)
    found = measure(family, ({"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}))
    assert found.cells
    for cell in found.cells:
        assert cell.passed, cell.reason
