"""Each operation has one canonical spelling, which computes the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.trace.compare import assert_same
from tests.trace.models import EAGER, TRANSFORMERS

Body = Callable[..., Any]

# What graphs of ordinary transformers consist of once they are canonical.
VOCABULARY = {
    "input", "param", "buffer", "autopar.cross_entropy", "autopar.count_targets", "aten.linear.default",
    "aten.matmul.default", "aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default",
    "aten.pow.Tensor_Scalar", "aten.rsqrt.default", "aten.tanh.default", "aten.silu.default",
    "aten.gelu.default", "aten.relu.default", "aten.softmax.int", "aten.layer_norm.default",
    "aten.embedding.default", "aten.scaled_dot_product_attention.default", "aten.sum.dim_IntList",
    "aten.reshape.default", "aten.permute.default", "aten.expand.default", "aten.slice.Tensor",
    "aten.split_with_sizes.default", "aten.cat.default", "aten.pad.default", "aten.to.dtype",
    "aten.arange.start_step", "aten.full.default", "aten.ge.Tensor", "aten.logical_and.default",
    "aten.masked_fill.Scalar", "aten.gather.default", "aten.cos.default", "aten.sin.default",
    "aten.convolution.default",
}  # fmt: skip


def traced_body(body: Body, *shapes: tuple[int, ...], tolerance: float = 1e-12) -> Any:
    """The canonical graph of ``body``; the first argument is a parameter, the others are inputs."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(shapes[0]).double())

        def forward(self, *xs: torch.Tensor) -> Any:
            return body(self.w, *xs)

    return assert_same(Model(), tuple(torch.randn(s).double() for s in shapes[1:]), tolerance=tolerance)[1]


def targets(graph: Any) -> list[str]:
    return [node.target for node in graph.nodes if node.target not in ("input", "param")]


@pytest.mark.parametrize("name", [name for name in (*TRANSFORMERS, *EAGER) if name != "t5"])
def test_transformers_use_a_small_vocabulary(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = {**TRANSFORMERS, **EAGER}[name]()
    _, graph = assert_same(model, inputs, tolerance=1e-3)
    assert {node.target for node in graph.nodes} <= VOCABULARY


VIEWS: dict[str, tuple[Body, list[str]]] = {
    "nothing": (
        lambda w: w.contiguous().clone().view(2, 3, 4)[:, :, 0:4].expand(2, -1, 4).permute(0, 1, 2),
        [],
    ),
    "chain": (lambda w: w.flatten().unsqueeze(0).unflatten(1, (4, 6)).squeeze(0), ["aten.reshape.default"]),
    "transposes": (lambda w: w.transpose(0, 1).transpose(-1, -2).movedim(0, 2), ["aten.permute.default"]),
    "there_and_back": (lambda w: w.transpose(0, 2).swapaxes(0, 2), []),
    "negative_slice": (lambda w: w[..., -2:], ["aten.slice.Tensor"]),
    "select": (lambda w: w[:, -1], ["aten.slice.Tensor", "aten.reshape.default"]),
    "chunk": (lambda w: w.chunk(2, -1)[1], ["aten.split_with_sizes.default"]),
    "narrow": (lambda w: w.narrow(-1, 1, 2), ["aten.slice.Tensor"]),
    "unit_dims": (lambda w: w.unsqueeze(0).transpose(0, 2), ["aten.permute.default", "aten.reshape.default"]),
    "stack": (lambda w: torch.stack([w, w], -1), ["aten.reshape.default", "aten.cat.default"]),
    "repeat_interleave": (
        lambda w: w.repeat_interleave(3, dim=1),
        ["aten.reshape.default", "aten.expand.default", "aten.reshape.default"],
    ),
    "repeat": (
        lambda w: w.repeat(2, 1, 3),
        ["aten.reshape.default", "aten.expand.default", "aten.reshape.default"],
    ),
    "broadcast": (lambda w: w[:, :1].expand(2, 3, 4) + w, ["aten.slice.Tensor", "aten.add.Tensor"]),
    "same_type": (lambda w: w.to(torch.float64).double() * 1 + 0, []),
    "square": (lambda w: w.mT, ["aten.permute.default"]),
    "unbind": (lambda w: w.unbind(1)[2], ["aten.split_with_sizes.default", "aten.reshape.default"]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_have_one_spelling(name: str) -> None:
    body, expected = VIEWS[name]
    assert targets(traced_body(body, (2, 3, 4))) == expected


def test_heads_split_after_a_transpose_are_split_before_it() -> None:
    graph = traced_body(lambda w: w.reshape(3, 8, 4).transpose(0, 1).reshape(2, 4, 3, 4), (3, 2, 16))
    reshape, permute = (node for node in graph.nodes if node.target != "param")
    assert reshape.attr("shape") == (3, 2, 4, 4)
    assert permute.attr("dims") == (1, 2, 0, 3)


ARITHMETIC: dict[str, tuple[Body, list[str]]] = {
    "alpha": (lambda w, x: torch.add(w, x, alpha=3), ["aten.mul.Tensor", "aten.add.Tensor"]),
    "alpha_after_number": (lambda w, x: torch.add(0.5, w, alpha=3), ["aten.mul.Tensor", "aten.add.Tensor"]),
    "minus": (lambda w, x: torch.sub(w, x, alpha=2), ["aten.mul.Tensor", "aten.sub.Tensor"]),
    "from_number": (lambda w, x: 1 - w, ["aten.neg.default", "aten.add.Tensor"]),
    "rsub": (lambda w, x: torch.rsub(w, x), ["aten.sub.Tensor"]),
    "mean": (lambda w, x: w.mean(-1), ["aten.sum.dim_IntList", "aten.div.Tensor"]),
    "mean_of_all": (lambda w, x: w.mean(), ["aten.sum.dim_IntList", "aten.div.Tensor"]),
    "sum_of_all": (lambda w, x: w.sum(), ["aten.sum.dim_IntList"]),
    "softmax": (lambda w, x: F.softmax(w, -1), ["aten.softmax.int"]),
    "addcmul": (lambda w, x: torch.addcmul(w, w, x), ["aten.mul.Tensor", "aten.add.Tensor"]),
    "compare": (lambda w, x: torch.where(x > 0, w, 0.0), ["aten.gt.Tensor", "aten.where.ScalarOther"]),
    "dropout": (lambda w, x: F.dropout(w, 0.0), []),
    "divide": (lambda w, x: torch.true_divide(w, 2) / x, ["aten.div.Tensor", "aten.div.Tensor"]),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_has_one_spelling(name: str) -> None:
    body, expected = ARITHMETIC[name]
    assert targets(traced_body(body, (4, 5), (4, 5))) == expected


PRODUCTS: dict[str, tuple[Body, tuple[tuple[int, ...], ...], list[str]]] = {
    "linear": (lambda w, b, x: F.linear(x, w, b[0]), ((5, 4), (1, 5), (3, 4)), ["reshape", "slice"]),
    "addmm": (lambda w, b, x: torch.addmm(b, x, w, beta=2, alpha=3), ((4, 5), (5,), (3, 4)), ["mul"]),
    "mm_of_transposed": (lambda w, x: x @ w.t(), ((5, 4), (3, 4)), []),
    "bmm": (lambda w, x: torch.bmm(x, w), ((2, 4, 5), (2, 3, 4)), []),
    "baddbmm": (lambda w, b, x: torch.baddbmm(b, x, w), ((2, 4, 5), (2, 3, 5), (2, 3, 4)), []),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_linear_or_matmul_with_the_bias_added_after(name: str) -> None:
    body, shapes, others = PRODUCTS[name]
    found = [target.split(".")[1] for target in targets(traced_body(body, *shapes))]
    assert set(found) <= {"linear", "matmul", "add", *others}
    assert sum(name in ("linear", "matmul") for name in found) == 1


def test_flattening_around_products_and_pointwise_work_vanishes() -> None:
    def body(w: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        flat = F.gelu(torch.addmm(b, x.view(-1, 4), w)).softmax(-1)
        left, right = (flat * 2).chunk(2, -1)
        return torch.cat([right, F.layer_norm(left, (3,))], -1).view(2, 3, 6) + 1

    graph = traced_body(body, (4, 6), (2, 3, 4), (6,))
    assert "aten.reshape.default" not in targets(graph)
    assert all(len(node.result.type.shape) == 3 for node in graph.nodes[3:] if len(node.results) == 1)


def test_flattening_that_is_not_undone_stays_at_the_end() -> None:
    graph = traced_body(lambda w, x: torch.mm(x.reshape(-1, 4), w), (4, 6), (2, 3, 4))
    assert targets(graph) == ["aten.matmul.default", "aten.reshape.default"]


def test_equal_parameter_free_work_is_done_once() -> None:
    def body(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return w * x.cos() + (w * x.cos())

    assert targets(traced_body(body, (3,), (3,))).count("aten.cos.default") == 1


def test_mean_of_half_precision_is_summed_in_float32() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean()

    x = torch.full((300, 300), 3.0, dtype=torch.float16)
    assert math.isinf(float(x.sum()))
    _, graph = assert_same(Model(), (x,))
    summed = graph.nodes[1]
    assert (summed.target, summed.attr("dtype")) == ("aten.sum.dim_IntList", "f32")
