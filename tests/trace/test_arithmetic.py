"""Numbers before tensors, factors, and element types that differ: graphs compute what torch does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.trace.compare import assert_same

# Of float64 x, integers i, truth values b and float32 y.
Body = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
EXACT: dict[str, Body] = {
    "number + alpha x": lambda x, i, b, y: torch.add(0.5, x, alpha=0.25),
    "number + alpha b": lambda x, i, b, y: x * torch.add(0.3333, b, alpha=0.6667),
    "number + alpha i": lambda x, i, b, y: x * torch.add(2, i, alpha=3),
    "0 + alpha x": lambda x, i, b, y: torch.add(0, x, alpha=0.25),
    "x + alpha number": lambda x, i, b, y: torch.add(x, 2, alpha=0.25),
    "x + alpha i": lambda x, i, b, y: torch.add(x, i, alpha=0.5),
    "x + alpha b": lambda x, i, b, y: torch.add(x, b, alpha=0.5),
    "x - alpha i": lambda x, i, b, y: torch.sub(x, i, alpha=0.5),
    "number - alpha x": lambda x, i, b, y: torch.sub(0.5, x, alpha=0.25),
    "number - alpha i": lambda x, i, b, y: x * torch.sub(7, i, alpha=2),
    "rsub": lambda x, i, b, y: torch.rsub(x, 0.5, alpha=2) + torch.rsub(x, i, alpha=0.5),
    "quantile": lambda x, i, b, y: x - x.quantile(0.3, -1, keepdim=True) + x.nanquantile(0.6, 0),
    "unsqueeze_copy": lambda x, i, b, y: x * torch.unsqueeze_copy(x.sum(-1), -1),
    "in place": lambda x, i, b, y: x.clone().add_(i, alpha=0.1).sub_(b.long(), alpha=0.2),
    "number / i": lambda x, i, b, y: x * (i / (i + 7)) + 2 / (x.abs() + 1),
    "number - i": lambda x, i, b, y: x * (1 - i) * (b * 0.5) * (i * 0.5),
    "number ** i": lambda x, i, b, y: x * 2**i + 2**x,
    "where": lambda x, i, b, y: torch.where(b, 0.5, x) + x * torch.where(b, i, 2) + x * torch.where(b, 0.5, 2.0),
}  # fmt: skip
"""Also in torch all of it is in float64."""
NARROW: dict[str, Body] = {
    "x + alpha y": lambda x, i, b, y: torch.add(x, y, alpha=0.1),
    "y - alpha x": lambda x, i, b, y: torch.sub(y, x, alpha=0.1),
    "y + alpha i": lambda x, i, b, y: torch.add(y, i, alpha=0.1) * x,
}


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.y = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
        self.register_buffer("i", torch.randint(0, 6, (8, 8)))
        self.register_buffer("b", torch.rand(8, 8) > 0.5)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x @ self.w, self.get_buffer("i"), self.get_buffer("b"), self.y.float()) * x


@pytest.mark.parametrize("name", [*EXACT, *NARROW])
def test_arithmetic_is_that_of_torch(name: str) -> None:
    net = Net({**EXACT, **NARROW}[name]).double()
    x = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_same(net, {"x": x}, tolerance=1e-12 if name in EXACT else 1e-5)
