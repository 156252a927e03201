"""Models that write in place compute the same once traced, through views too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.trace.compare import assert_same

Body = Callable[[torch.Tensor], torch.Tensor]


def add_and_multiply(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y += 1
    y.mul_(x).clamp_(min=-1.0)
    return y


def masked_and_indexed(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.masked_fill_(x > 0, 0.5)
    y[torch.tensor([0, 2])] = 1.0
    return y


def row_of_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.5
    y.view(2, 2, 6)[:, 0].mul_(2)
    return y


def later_reads_of_other_views(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.5
    before = y[1:3]
    turned = y.t()
    y[:, 1:4].add_(x[:, 1:4])
    return before.sum() + (turned @ x).sum() + y.sum()


def assigned_slices(x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros(4, 8)
    out[:, 1:7] = x
    out[..., 0] = 2
    out[-1] = x.sum()
    return out


def whole_and_strided(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y.copy_(x[0])
    y[:, ::2].neg_()
    y.permute(1, 0)[2].fill_(3.0)
    return y


def inner_type_is_kept(x: torch.Tensor) -> torch.Tensor:
    y = x.float()
    y.add_(x)
    return y.double()


@pytest.mark.parametrize(
    "body",
    [
        add_and_multiply,
        masked_and_indexed,
        row_of_a_view,
        later_reads_of_other_views,
        assigned_slices,
        whole_and_strided,
        inner_type_is_kept,
    ],
    ids=lambda body: body.__name__,
)
def test_writes_become_values(body: Body) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 6).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return body(self.w * x)

    traced, graph = assert_same(Model(), (torch.randn(4, 6).double(),))
    for node in (*traced.graph.nodes, *graph.nodes):
        assert "_." not in node.target


def test_writes_to_pieces_of_a_split_reach_the_whole() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 1.5
            first, second = y.chunk(2, dim=1)
            second.copy_(first * 3)
            y.unbind(0)[1].zero_()
            return y * first.sum()

    assert_same(Model(), (torch.randn(4, 6).double(),))


def test_cells_of_recurrent_networks_write_to_pieces() -> None:
    """In place in torch, on what ``unsafe_split`` and ``unsafe_chunk`` gave."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTMCell(6, 3).double(), nn.GRUCell(6, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden, cell = self.lstm(x)
            made: torch.Tensor = cell * self.gru(x, hidden)
            return made

    assert_same(Model(), (torch.randn(4, 6).double(),))


def test_written_buffers_are_assigned_their_new_values() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(3).double())
            self.register_buffer("fixed", torch.ones(3).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("calls").add_(1)
            self.get_buffer("mean").mul_(0.9).add_(x.mean(0), alpha=0.1)
            return x - self.mean + self.fixed  # type: ignore[operator]

    traced, graph = assert_same(Counting(), (torch.randn(5, 3).double(),))
    assert traced.updates == ("calls", "mean")
    assert len(graph.outputs) == 1
