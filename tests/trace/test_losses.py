"""Losses become a sum over the batch and a denominator of the whole batch; their value stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.trace.compare import assert_same

SUM, COUNT = "autopar.cross_entropy", "autopar.count_targets"
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.1, 3.0]).double()


def canonical(body: Callable[..., torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn_like(x))

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return body(x * self.w, target)

    return assert_same(Model(), (x, target), tolerance=1e-12 if x.dtype == torch.float64 else 3e-2)[1]


def classes(*shape: int) -> torch.Tensor:
    made = torch.randint(0, 5, shape)
    made.view(-1)[0] = -100
    return made


CLASSES: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], bool]] = {
    "rows": (lambda x, t: F.cross_entropy(x.view(6, 5), t.view(6)), (2, 3, 5), True),
    "flattened": (lambda x, t: F.cross_entropy(x.view(-1, 5), t.view(-1)), (2, 3, 5), True),
    "channels": (lambda x, t: F.cross_entropy(x.transpose(1, 2), t), (2, 3, 5), True),
    "weighted": (lambda x, t: F.cross_entropy(x.view(-1, 5), t.view(-1), WEIGHT), (2, 3, 5), True),
    "smoothed": (
        lambda x, t: F.cross_entropy(x.view(-1, 5), t.view(-1), WEIGHT, label_smoothing=0.2), (2, 3, 5), True,
    ),
    "summed": (lambda x, t: F.cross_entropy(x.view(-1, 5), t.view(-1), reduction="sum"), (2, 3, 5), False),
    "by_hand": (lambda x, t: F.cross_entropy(x.view(6, 5), t.view(6), reduction="sum") / 7, (2, 3, 5), False),
    "nll": (lambda x, t: F.nll_loss(F.log_softmax(x, -1).view(-1, 5), t.view(-1)), (2, 3, 5), True),
    "nll_flat": (lambda x, t: F.nll_loss(F.log_softmax(x.view(-1, 5), 1), t.view(-1)), (2, 3, 5), True),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_cross_entropy_is_a_sum_and_a_count_on_unflattened_logits(name: str) -> None:
    body, shape, counted = CLASSES[name]
    graph = canonical(body, torch.randn(shape).double(), classes(*shape[:-1]))
    found = {node.target: node for node in graph.nodes}
    types = graph.values()
    logits, target, *_ = found[SUM].operands
    assert types[logits].type.shape == shape
    assert types[target].type.shape == shape[:-1]
    assert found[SUM].attr("ignore_index") == -100
    assert (COUNT in found) == counted
    assert not [name for name in found if "loss" in name]


PROBABILITIES = torch.rand(6, 5).double().softmax(-1)
ROWS, SOFT = "autopar.cross_entropy_rows", "autopar.soft_cross_entropy_rows"


@pytest.mark.parametrize(
    ("body", "target"),
    [
        (lambda x, t: F.cross_entropy(x.view(-1, 5), t.view(-1), reduction="none").sum(), ROWS),
        (lambda x, t: F.cross_entropy(x.transpose(1, 2), t, WEIGHT, reduction="none").square().sum(), ROWS),
        (lambda x, t: F.cross_entropy(x.view(6, 5), t.view(6), reduction="none", label_smoothing=0.3)[2:].sum(), ROWS),
        (lambda x, t: F.nll_loss(F.log_softmax(x.view(-1, 5), 1), t.view(-1), reduction="none").sum(), ROWS),
        (lambda x, t: F.cross_entropy(x.view(-1, 5), PROBABILITIES), SOFT),
        (lambda x, t: F.cross_entropy(x.view(6, 5), PROBABILITIES, WEIGHT, label_smoothing=0.1, reduction="sum"), SOFT),
        (lambda x, t: F.cross_entropy(x.transpose(1, 2), PROBABILITIES.view(2, 5, 3), reduction="none").sum(), SOFT),
        (lambda x, t: F.cross_entropy(x.transpose(1, 2), PROBABILITIES.view(2, 5, 3), WEIGHT), SOFT),
        (lambda x, t: F.cross_entropy(x.view(6, 5), x.view(6, 5).softmax(-1)), SOFT),
        (lambda x, t: F.cross_entropy(x[0, 0], t[1, 1]), SUM),
        (lambda x, t: x.log_softmax(-1).gather(2, t.clamp(0).unsqueeze(-1)).mean(), ROWS),
    ],
)  # fmt: skip
def test_rows_and_probabilities_have_an_operation_of_their_own(
    body: Callable[..., torch.Tensor], target: str
) -> None:
    graph = canonical(body, torch.randn(2, 3, 5).double(), classes(2, 3))
    found = {node.target for node in graph.nodes}
    assert target in found
    assert not [name for name in found if "loss" in name]


def test_trained_weights_of_probabilities_are_left_to_torch() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(WEIGHT)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(x, PROBABILITIES, self.w)

    graph = assert_same(Model(), (torch.randn(6, 5).double(),), tolerance=1e-12)[1]
    assert "aten.cross_entropy_loss.default" in {node.target for node in graph.nodes}


def test_cross_entropy_of_half_precision_is_summed_in_float32() -> None:
    graph = canonical(
        lambda x, t: F.cross_entropy(x.view(-1, 5), t.view(-1)),
        torch.randn(2, 3, 5).bfloat16(),
        classes(2, 3),
    )
    summed = next(node for node in graph.nodes if node.target == SUM)
    assert (summed.attr("dtype"), summed.result.type.dtype) == ("f32", "f32")
    assert graph.values()[graph.outputs[0]].type.dtype == "bf16"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits],
    ids=lambda loss: loss.__name__,
)
def test_means_are_sums_divided_by_a_number(loss: Any, reduction: str) -> None:
    graph = canonical(
        lambda x, t: loss(x, t, reduction=reduction).sum(),
        torch.randn(4, 3).double(),
        torch.rand(4, 3).double(),
    )
    names = {node.target for node in graph.nodes}
    assert "aten.sum.dim_IntList" in names
    assert ("aten.div.Tensor" in names) == (reduction == "mean")
    assert all(node.attr("reduction", 0) == 0 for node in graph.nodes if "loss" in node.target)
