"""Cross-entropy of every spelling on sharded classes: torch's loss and gradient, and no gathered logits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from autopar.passes.prepare import canonical_graph
from autopar.passes.trace import Traced, trace
from autopar.runtime.simulate import simulate
from tests.lowered import all_graphs, collectives, lowered, model_of

CLASSES = 12
SHAPE = (4, 3, CLASSES)
MESHES = [Mesh((("x", 2),)), Mesh((("x", 3),)), Mesh((("x", 4),)), Mesh((("x", 2), ("y", 2)))]
WEIGHT = torch.rand(CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
SOFT = torch.rand(SHAPE, generator=torch.Generator().manual_seed(2), dtype=torch.float64).softmax(-1)

Spelling: TypeAlias = Callable[[Tensor, Tensor], Tensor]
OWN = "probabilities with a gradient"


def ce(x: Tensor, t: Tensor, **given: Any) -> Tensor:
    flat = t.reshape(-1, CLASSES) if t.is_floating_point() else t.view(-1)
    return F.cross_entropy(x.view(-1, CLASSES), flat, **given)


def weight(x: Tensor) -> Tensor:
    return WEIGHT.to(x.dtype)


def soft(x: Tensor) -> Tensor:
    return SOFT.to(x.dtype)


SPELLINGS: dict[str, Spelling] = {
    "mean": ce,
    "sum": lambda x, t: ce(x, t, reduction="sum"),
    "none": lambda x, t: (ce(x, t, reduction="none") * torch.arange(12)).sum(),
    "other index ignored": lambda x, t: ce(x, t.where(t != -100, 7), ignore_index=7),
    "smoothed": lambda x, t: ce(x, t, label_smoothing=0.2),
    "smoothed sum": lambda x, t: ce(x, t.where(t != -100, 2), label_smoothing=0.2, reduction="sum", ignore_index=2),
    "weighted": lambda x, t: ce(x, t, weight=weight(x)),
    "weighted none": lambda x, t: ce(x, t, weight=weight(x), reduction="none").square().sum(),
    "smoothed and weighted": lambda x, t: ce(x, t, weight=weight(x), label_smoothing=0.3),
    "smoothed, weighted, none": lambda x, t: (
        ce(x, t, weight=weight(x), label_smoothing=0.3, reduction="none")[1:].sum()
    ),
    "classes second": lambda x, t: F.cross_entropy(x.transpose(1, 2), t, weight(x), label_smoothing=0.1),
    "nll": lambda x, t: F.nll_loss(F.log_softmax(x, -1).view(-1, CLASSES), t.view(-1), weight(x)),
    "nll none": lambda x, t: (
        F.nll_loss(x.log_softmax(-1).view(-1, CLASSES), t.view(-1), reduction="none").square().sum()
    ),
    "picked": lambda x, t: (x.log_softmax(-1).gather(-1, t.clamp(0).unsqueeze(-1)).squeeze(-1) * t).mean(),
    "probabilities": lambda x, t: ce(x, soft(x)),
    "probabilities, smoothed and weighted": lambda x, t: F.cross_entropy(
        x.transpose(1, 2), soft(x).transpose(1, 2), weight(x), label_smoothing=0.1
    ),
    OWN: lambda x, t: ce(x, (2 * x).softmax(-1), weight=weight(x), reduction="sum", label_smoothing=0.4),
}  # fmt: skip


class Head(nn.Module):
    """Logits that are parameters."""

    def __init__(self, spelling: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.key = (spelling, dtype)
        drawn = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 5
        self.x = nn.Parameter(drawn.to(dtype))
        self.spelling = SPELLINGS[spelling]

    def forward(self, labels: Tensor) -> Tensor:
        return self.spelling(self.x, labels)


def targets(ignored: str) -> Tensor:
    """``rows``: the first half of the batch has none; ``classes``: none lies in the first half of the classes."""
    made = torch.randint(0, CLASSES, SHAPE[:-1], generator=torch.Generator().manual_seed(4))
    if ignored == "rows":
        made[:2] = -100
    if ignored == "classes":
        made[made < CLASSES // 2] = -100
    return made


@functools.cache
def opened(spelling: str, dtype: torch.dtype) -> tuple[Traced, Graph]:
    traced = trace(Head(spelling, dtype), (targets(""),))
    return traced, canonical_graph(traced.graph)


def split(head: Head, labels: Tensor, mesh: Mesh, batch: str = "") -> tuple[Program, Tensor, Tensor]:
    """The loss with its classes on every axis but ``batch``: the program, the loss and its gradient."""
    traced, graph = opened(*head.key)
    inner = {axis: "v" for axis in mesh.names if axis != batch}
    rows = {batch: "*b0"} if batch else {}
    choices = {}
    for node in graph.nodes:
        if node.target == "autopar.row_max" or node.target.endswith("entropy_stats"):
            choices[node.result.name] = {**inner, **rows}
        elif node.target.endswith("from_stats"):
            choices[node.result.name] = rows
    where = ", ".join([f"{axis}:S(2)" for axis in inner] + [f"{axis}:S(0)" for axis in rows])
    program = lowered(model_of(graph, {traced.input_names[0]: (0, None)}), mesh, choices, {"x": where})
    state = {"x": head.x.detach(), **traced.constants}
    found = simulate(program, {traced.input_names[0]: labels}, state)
    assert found.loss is not None
    return program, found.loss, found.gradients["x"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_spelling_is_torchs_on_split_classes(spelling: str, mesh: Mesh) -> None:
    """Loss and gradient; what moves is sums over classes, three or four numbers a row."""
    head = Head(spelling, torch.float64)
    for ignored in ("", "rows", "classes"):
        labels = targets(ignored)
        program, loss, gradient = split(head, labels, mesh)
        head.zero_grad()
        expected = head(labels)
        expected.backward()
        assert head.x.grad is not None
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, head.x.grad, rtol=1e-12, atol=1e-12)
    if spelling != OWN:  # its softmax needs whole rows
        assert set(collectives(program, mesh.names[0])) == {"all_reduce"}
    assert not [n for part in all_graphs(program) for n in part.nodes if "cross_entropy_loss" in n.target]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_classes_and_rows_are_split_together(spelling: str) -> None:
    """Half of the rows have no target at all: their device adds nothing, and no NaN."""
    head, labels = Head(spelling, torch.float64), targets("rows")
    _, loss, gradient = split(head, labels, MESHES[-1], batch="y")
    expected = head(labels)
    expected.backward()
    assert head.x.grad is not None
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, head.x.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if name != OWN])
@pytest.mark.parametrize("size", [1, 4])
def test_bf16_logits_are_summed_in_float32(spelling: str, size: int) -> None:
    """The loss is that of float64 but for the rounding of class weights, result and gradient."""
    head, exact = Head(spelling, torch.bfloat16), Head(spelling, torch.float64)
    labels = targets("rows")
    with torch.no_grad():
        exact.x.copy_(head.x)
    _, loss, gradient = split(head, labels, Mesh((("x", size),)))
    expected = exact(labels)
    expected.backward()
    assert exact.x.grad is not None
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=2**-7, atol=0)
    scale = float(exact.x.grad.abs().max())
    torch.testing.assert_close(gradient.double(), exact.x.grad, rtol=2**-6, atol=2**-7 * scale)
