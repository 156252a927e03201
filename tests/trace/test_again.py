"""What a forward leaves for its next call is refused where results depend on it, and only there."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from autopar.errors import UnsupportedError
from autopar.passes.trace import trace
from autopar.passes.trace.twice import alike

X = torch.zeros(4, 8)


class Kept(nn.Module):
    """``way``: what its forward does with what stays on the module."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.inner = way, Inner()

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) * getattr(self.inner, self.way)(x)).square().mean()  # type: ignore[no-any-return]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls, self.shift, self.last = 0, 3, torch.ones(8)
        self.register_buffer("mean", torch.zeros(8))
        self.mean: Tensor
        self.state: Tensor | None = None
        self.cached: Tensor | None = None
        self.table: dict[str, Tensor] = {}
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        return self.linear(x)

    def count(self, x: Tensor) -> float:
        self.calls += 1
        return 1 / self.calls

    def carry(self, x: Tensor) -> Tensor:
        before = torch.ones(8) if self.state is None else self.state
        self.state = self.linear(x).detach().mean(0)
        return before

    def replace(self, x: Tensor) -> Tensor:
        before, self.last = self.last, self.linear(x).detach().mean(0)
        return before

    def remember(self, x: Tensor) -> int:
        self.seen.append(x)
        return len(self.seen)

    def draw(self, x: Tensor) -> float:
        return random.random()

    def leave_out(self, x: Tensor) -> float:
        return 0.0 if np.random.rand() < 0.1 else 1.0

    def cut_out(self, x: Tensor) -> Tensor:
        self.calls += 1
        kept = self.linear(x)
        kept[:, : self.calls] = 0
        return kept  # type: ignore[no-any-return]

    def average(self, x: Tensor) -> float:
        self.calls += 1
        self.mean.mul_(1 - 1 / self.calls).add_(x.detach().mean(0) / self.calls)
        return 1.0

    def draw_once(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = torch.rand(8)
        return self.cached

    def only_count(self, x: Tensor) -> float:
        self.calls += 1
        return 1.0

    def set_alike(self, x: Tensor) -> int:
        if len(x) <= 4:
            self.shift = 0
        return 1 + self.shift

    def show(self, x: Tensor) -> float:
        self.state = self.linear(x)
        self.seen.append(x)
        return 1.0

    def cache(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = torch.arange(8.0).cos()
        if "sin" not in self.table:
            self.table["sin"] = torch.arange(8.0).sin()
        return self.cached + self.table["sin"]

    def make(self, x: Tensor) -> Tensor:
        if not hasattr(self, "made"):
            self.made = torch.arange(8.0).cos()
        return self.made

    def cast(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            return self.mean.float().cos()

    def move(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        return self.mean + 1

    def refill(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = torch.zeros(4, 8)
        self.cached.zero_()
        self.cached[:2] = x.detach()[:2]
        return self.cached

    def look(self, x: Tensor) -> int:
        before = vars(self)["calls"]
        self.calls = 5
        return 1 + before  # type: ignore[no-any-return]

    def never_left_out(self, x: Tensor) -> float:
        return 0.0 if random.uniform(0, 1) < 0.0 else 1.0


@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("count", r"changes inner\.calls,"), ("carry", r"changes inner\.state,"), ("replace", r"changes inner\.last,"),
        ("remember", r"changes inner\.seen,"), ("draw", "draws random numbers"), ("leave_out", "draws random numbers"),
        ("cut_out", r"changes inner\.calls,"), ("average", r"changes inner\.calls,"),
        ("draw_once", r"changes inner\.cached,"), ("look", r"changes inner\.calls,"),
    ],
)  # fmt: skip
def test_results_that_depend_on_earlier_calls_are_refused(way: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=f"the forward {named}.* in every step"):
        trace(Kept(way), (X,))


@pytest.mark.parametrize(
    "way", ["only_count", "set_alike", "show", "cache", "make", "never_left_out", "cast", "move", "refill"]
)
def test_what_results_do_not_depend_on_is_traced_and_put_back(way: str) -> None:
    model = Kept(way)
    before = {name: repr(value) for name, value in vars(model.inner).items()}
    state = random.getstate()
    first = trace(model, (X,))
    assert {name: repr(value) for name, value in vars(model.inner).items()} == before
    assert random.getstate() == state
    assert trace(model, (X,)).graph == first.graph
    assert torch.isfinite(model(torch.randn(4, 8)))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What is found of every two calls that are compared."""
    found: list[bool] = []

    def told(program: torch.export.ExportedProgram) -> bool:
        found.append(alike(program))
        return found[-1]

    monkeypatch.setattr("autopar.passes.trace.again.alike", told)
    return found


def test_numbers_that_a_window_attention_sets_in_each_call_are_no_state(compared: list[bool]) -> None:
    config = transformers.SwinConfig(
        window_size=8, image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2]
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.SwinForImageClassification(config)
    labels = torch.zeros(2, dtype=torch.int64)
    trace(model, {"pixel_values": torch.zeros(2, 3, 32, 32), "labels": labels})
    assert compared == []


@pytest.mark.parametrize(("way", "calls"), [("set_alike", []), ("only_count", [True]), ("cache", [True])])
def test_two_calls_are_compared_where_one_reads_what_the_last_one_left(
    way: str, calls: list[bool], compared: list[bool]
) -> None:
    """Or may have read it without being seen, as what is not plain data."""
    trace(Kept(way), (X,))
    assert compared == calls


def test_hooks_of_transformers_and_lists_of_recurrent_layers_are_no_state(compared: list[bool]) -> None:
    """transformers notes that it has set hooks; torch's recurrent layers keep lists of their parameters."""
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=5, num_attention_heads=2,
        num_key_value_heads=2, output_hidden_states=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.model.latest = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.zeros(1))
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    trace(model, {"input_ids": tokens, "labels": tokens})
    trace(nn.LSTM(8, 8), (torch.zeros(3, 2, 8),))
    assert compared == []


class Centered(nn.Module):
    """A loss that moves its center, or only tells of itself."""

    def __init__(self, moves: bool) -> None:
        super().__init__()
        self.center: Tensor
        self.register_buffer("center", torch.zeros(8))
        self.moves, self.told = moves, {"loss": [torch.zeros(())]}

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if self.moves:
            self.center = self.center * 0.9 + target.mean(0) * 0.1
        loss = nn.functional.mse_loss(output - self.center, target)
        self.told["loss"].append(loss)
        return loss


def test_what_a_loss_function_moves_is_refused_and_what_it_tells_is_put_back() -> None:
    moving, telling = Centered(True), Centered(False)
    with pytest.raises(UnsupportedError, match=r"changes loss_fn\.told, loss_fn\.center, "):
        trace(nn.Linear(8, 8), (X, X), loss_fn=moving)
    trace(nn.Linear(8, 8), (X, X), loss_fn=telling)
    for each in (moving, telling):
        assert len(each.told["loss"]) == 1
        assert not any(isinstance(tensor, FakeTensor) for tensor in (each.center, *each.told["loss"]))
