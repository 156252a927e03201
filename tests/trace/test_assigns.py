"""Writes to buffers hang on a value that the loss needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autopar.errors import UnsupportedError
from autopar.ir.graph import ASSIGN, Graph, Node, assigned
from autopar.passes.trace import trace
from tests.trace.compare import assert_same


class Base(nn.Module):
    average: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4).double()
        self.register_buffer("average", torch.ones(4).double())
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))


def assigns(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.target == ASSIGN]


def carrier(graph: Graph, node: Node) -> str:
    return graph.producers()[str(node.operands[0])].target


INPUTS = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double(),)


def test_a_write_hangs_on_the_next_value_with_a_gradient() -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            mask = torch.arange(4) > 1
            return (self.layer(x) * mask).sum()  # type: ignore[no-any-return]

    traced, _ = assert_same(Model(), INPUTS)
    (node,) = assigns(traced.graph)
    assert carrier(traced.graph, node) == "aten.linear.default"


def test_a_write_after_the_loss_hangs_on_the_loss() -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            loss = self.layer(x).square().mean()
            self.average.mul_(0.5).add_(loss.detach())
            return loss  # type: ignore[no-any-return]

    traced, _ = assert_same(Model(), INPUTS)
    (node,) = assigns(traced.graph)
    assert traced.graph.outputs == (node.result.name,)
    assert carrier(traced.graph, node) == "aten.mean.default"


def test_a_branch_that_only_a_buffer_needs_stays() -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            self.average.copy_((x @ x.t()).exp().mean() * torch.ones(4))
            return self.layer(x).sum()  # type: ignore[no-any-return]

    _, graph = assert_same(Model(), INPUTS)
    assert "aten.exp.default" in [node.target for node in graph.nodes]
    assert len(assigns(graph)) == 1


def test_an_assignment_to_an_attribute_is_a_write_where_the_value_was_computed() -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            self.average = 0.9 * self.average + 0.1 * h.mean(0)
            return h.tanh().sum()  # type: ignore[no-any-return]

    model = Model()
    traced = trace(model, INPUTS)
    (node,) = assigns(traced.graph)
    assert carrier(traced.graph, node) == "aten.tanh.default"
    (new,) = [new for _, new in assigned(node)]
    assert traced.graph.producers()[new].target == "autopar.detach"
    assert model.average is dict(model.named_buffers())["average"]
    assert torch.equal(model.average, torch.ones(4).double())


def test_values_that_come_back_as_they_were_are_no_write() -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            self.average = self.average
            return (self.layer(x) * self.average).sum()  # type: ignore[no-any-return]

    traced, _ = assert_same(Model(), INPUTS)
    assert traced.updates == ()
    assert not assigns(traced.graph)


def test_the_last_of_several_writes_counts() -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            for _ in range(3):
                self.average.mul_(2.0)
                h = h * self.average.clone()
            self.calls.add_(2).mul_(5)
            return h.sum()  # type: ignore[no-any-return]

    traced, graph = assert_same(Model(), INPUTS)
    assert sorted(traced.updates) == ["average", "calls"]
    assert len([pair for node in assigns(graph) for pair in assigned(node)]) == 2


def in_place(average: Tensor, new: Tensor) -> None:
    average.mul_(0.5).add_(new)


def into_it(average: Tensor, new: Tensor) -> None:
    """As ``spectral_norm`` writes its vectors."""
    torch.mul(average, 0.5, out=average)
    torch.add(average, new, out=average)


@pytest.mark.parametrize("write", [in_place, into_it])
def test_what_is_written_without_gradients_has_none_where_it_is_used(write: Callable[[Tensor, Tensor], None]) -> None:
    """Though it is a tensor from outside, what it holds then is not."""

    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.layer(x)
            with torch.no_grad():
                write(self.average, hidden.mean(0))
            centred: Tensor = hidden - self.average
            return centred.square().sum()

    traced, _ = assert_same(Model(), INPUTS)
    assert len(assigns(traced.graph)) == 1


def test_the_vectors_of_a_spectral_norm_are_written() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).double()

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.layer(x)
            return made.square().sum()

    traced, _ = assert_same(Model(), INPUTS)
    written = {buffer for node in assigns(traced.graph) for buffer, _ in assigned(node)}
    assert len(written) == 2


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (lambda old: old.float(), "replaces the buffer average, torch.float64"),
        (lambda old: old[:2], "replaces the buffer average, .*\\[2\\]"),
        (lambda old: None, "makes or removes the buffer average"),
    ],
)
def test_a_buffer_keeps_its_kind(replaced: Any, message: str) -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            self.average = replaced(self.average)
            return self.layer(x).sum()  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedError, match=message):
        trace(Model(), INPUTS)


def test_parameters_are_not_written() -> None:
    class Model(Base):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.layer.bias.add_(1.0)
            return self.layer(x).sum()  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedError, match=r"writes to layer\.bias in its forward; only buffers may be written"):
        trace(Model(), INPUTS)
