"""Rows may be added to a batch where every loss can leave them out; else the reason names the operation."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import ready
from autopar.ir.padding import Padding
from autopar.passes.padding import padding_of
from tests.models import BUILDERS, inputs

ROWS = 8
Loss = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Logits of 6 classes for each of 4 positions, and a loss of them."""

    def __init__(self, loss: Loss, body: nn.Module | None = None) -> None:
        super().__init__()
        self.loss, self.body, self.head = loss, body or nn.Identity(), nn.Linear(16, 6)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.head(self.body(x)), labels)


class OverRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(0)


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Counting(nn.Module):
    """Adds up what it has seen in a buffer, of which the loss knows nothing."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(x.sum((0, 1)))
        return x


class Twice(nn.Module):
    """Two losses, each with an index of its own that is ignored."""

    def __init__(self, second: int) -> None:
        super().__init__()
        self.head, self.second = nn.Linear(16, 6), second

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits, target = self.head(x).flatten(0, 1), labels.flatten()
        second = F.cross_entropy(2 * logits, target, ignore_index=self.second)
        return F.cross_entropy(logits, target, ignore_index=3) + 0.5 * second


def found(model: nn.Module) -> Padding:
    batch = {"x": torch.randn(ROWS, 4, 16), "labels": torch.randint(6, (ROWS, 4))}
    return padding_of(ready(model, batch, check(cluster="1x1xCPU")).model)


def mean(logits: Tensor, labels: Tensor, **options: object) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)  # type: ignore[arg-type]


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    """As transformers shifts them."""
    return mean(logits, F.pad(labels, (0, 1), value=-100)[:, 1:])


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [
        (mean, -100),
        (lambda logits, labels: mean(logits, labels, ignore_index=5), 5),
        (lambda logits, labels: mean(logits, labels, label_smoothing=0.1), -100),
        (lambda logits, labels: F.cross_entropy(logits.transpose(1, 2), labels), -100),
        (lambda logits, labels: F.nll_loss(logits.flatten(0, 1).log_softmax(-1), labels.flatten()), -100),
        (lambda logits, labels: 0.5 * mean(logits, labels), -100),
        (shifted, -100),
    ],
    ids=["mean", "index", "smoothed", "classes in the middle", "nll", "half", "shifted"],
)
def test_a_cross_entropy_of_labels_leaves_rows_out(loss: Loss, ignored: int) -> None:
    assert found(Net(loss)) == Padding(batch=("x", "labels"), labels={"labels": ignored})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Net(lambda logits, labels: logits.square().mean()), "no loss of the model leaves rows out"),
        (Net(lambda logits, labels: F.mse_loss(logits[..., 0], labels.float())), "no loss of the model leaves"),
        (Net(lambda logits, labels: mean(logits, labels) + logits.square().mean()),
         r"aten\.sum\S* at test_padding\.py:\d+ adds up the rows of the batch"),
        (Net(mean, OverRows()), r"aten\.softmax\.int at body test_padding\.py:\d+ needs all rows of the batch"),
        (Net(mean, Centred()), r"aten\.sum\.dim_IntList at body test_padding\.py:\d+ adds up the rows"),
        (Net(mean, Counting()), r"aten\.sum\.dim_IntList at body test_padding\.py:\d+ adds up the rows"),
        (Net(lambda logits, labels: mean(logits, labels + 0 * labels)), "are computed, not an input of the batch"),
        (Net(lambda logits, labels: mean(logits, F.pad(labels, (0, 1), value=0)[:, 1:])), "are computed"),
        (Net(lambda logits, labels: mean(logits + labels[..., None], labels)), "computes with the labels"),
        (Net(lambda logits, labels: mean(logits, labels, reduction="sum") / len(labels)),
         r"has the number 8, which may count the planned rows"),
        (Net(lambda logits, labels: mean(logits, labels, reduction="none").mean()), "adds up the rows"),
        (Twice(second=2), "two losses ignore different values of labels: 3 and 2"),
    ],
    ids=["no labels", "mse", "second term", "softmax over rows", "centred", "buffer", "computed labels",
         "filled labels", "labels as input", "divided by rows", "mean of each", "two indices"],
)  # fmt: skip
def test_what_ties_rows_together_is_named(model: nn.Module, reason: str) -> None:
    refused = found(model)
    assert refused.labels == {}
    assert re.search(reason, refused.refused), refused.refused


def test_two_losses_that_ignore_the_same_value_are_fine() -> None:
    assert found(Twice(second=3)).labels == {"labels": 3}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_models_of_transformers_can_be_padded(name: str) -> None:
    batch = inputs(name)
    padding = padding_of(ready(BUILDERS[name](), batch, check(cluster="1x1xCPU")).model)
    assert padding == Padding(batch=tuple(batch), labels={"labels": -100})
