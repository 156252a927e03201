"""Nodes become calls of torch by the operation's schema; our own operations equal their references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.ir.errors import IRError
from autopar.ir.graph import Node, Operand, Value, sorted_attrs
from autopar.ir.types import TensorType
from autopar.runtime import autopar_ops as own
from autopar.runtime import cross_entropy as losses
from autopar.runtime.ops import run_node

CPU = torch.device("cpu")


def run(
    target: str, *values: Any, operands: tuple[Operand, ...] | None = None, **attrs: Any
) -> tuple[Any, ...]:
    names = operands if operands is not None else tuple(f"v{i}" for i in range(len(values)))
    node = Node(
        results=(Value("r", TensorType("f64", ())),), target=target, operands=names, attrs=sorted_attrs(attrs)
    )
    return run_node(node, values, {"tp": 1, "cp": 2}, CPU)


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_scalar_stands_where_the_schema_wants_a_tensor() -> None:
    x = double(3)
    assert torch.equal(run("aten.add.Tensor", x, other=1.5, alpha=2)[0], x + 3.0)
    assert torch.equal(run("aten.add.Tensor", x, None, operands=("x", None), other=1.5)[0], x + 1.5)


def test_gaps_take_their_defaults() -> None:
    q = double(2, 2, 4, 8)
    got = run("aten.scaled_dot_product_attention.default", q, q, q, is_causal=True, scale=0.3)[0]
    assert torch.equal(got, F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3))
    got = run("aten.layer_norm.default", q, None, double(8), operands=("q", None, "b"), normalized_shape=(8,))
    assert got[0].shape == q.shape


def test_absent_optional_operand_is_none() -> None:
    x, w = double(2, 4), double(3, 4)
    assert torch.equal(run("aten.linear.default", x, w)[0], F.linear(x, w))
    assert torch.equal(run("aten.linear.default", x, w, None, operands=("x", "w", None))[0], F.linear(x, w))


def test_tensors_may_be_given_by_keyword_alone() -> None:
    x, least = double(3, 2), torch.tensor(1e-3, dtype=torch.float64)
    found = run("aten.linalg_pinv.atol_rtol_tensor", x, least)[0]
    assert torch.equal(found, torch.linalg.pinv(x, atol=least))
    found = run("aten.linalg_pinv.atol_rtol_tensor", x, None, least, operands=("x", None, "least"))[0]
    assert torch.equal(found, torch.linalg.pinv(x, rtol=least))


def test_list_of_tensors_and_list_results() -> None:
    x, y = double(2, 4), double(2, 2)
    assert torch.equal(
        run("aten.cat.default", (x, y), operands=(("x", "y"),), dim=1)[0], torch.cat((x, y), 1)
    )
    parts = run("aten.split_with_sizes.default", x, split_sizes=(1, 3), dim=1)
    assert [tuple(part.shape) for part in parts] == [(2, 1), (2, 3)]
    index = torch.tensor([1, 0])
    got = run("aten.index.Tensor", x, (None, index), operands=("x", (None, "i")))[0]
    assert torch.equal(got, x[:, index])


def test_element_types_by_name_and_factories_on_the_device() -> None:
    assert run("aten.arange.start", start=2, end=5, dtype="i32")[0].tolist() == [2, 3, 4]
    assert run("aten.full.default", size=(2,), fill_value=3.0, dtype="f64")[0].dtype == torch.float64
    grad, made = double(2, 3), double(2, 3).softmax(-1)
    found = run("aten._softmax_backward_data.default", grad, made, dim=-1, input_dtype="f64")[0]
    assert torch.equal(found, torch._softmax_backward_data(grad, made, -1, torch.float64))
    assert run("aten.to.dtype", double(2), dtype="bf16")[0].dtype == torch.bfloat16
    assert run("aten.zeros_like.default", double(2), dtype="f32")[0].dtype == torch.float32


def test_start_is_summed_over_axes() -> None:
    table = double(4, 3)
    start = (("tp", 4), ("cp", 8))  # 1 · 4 + 2 · 8 = 20
    ids = torch.tensor([19, 20, 23, 24])
    got = run("autopar.embedding_shard", table, ids, start=start)[0]
    assert torch.equal(
        got, torch.stack([torch.zeros(3).double(), table[0], table[3], torch.zeros(3).double()])
    )


@pytest.mark.parametrize(
    ("target", "attrs", "message"),
    [
        ("aten.no_such_op.default", {}, "torch has no such operation"),
        ("autopar.no_such_op", {}, "autopar has no such operation"),
        ("aten.neg.default", {"axis": 1}, "takes no axis"),
        ("autopar.sdpa_rows", {"start": (("mb", 1),)}, "axis 'mb'"),
    ],
)
def test_what_cannot_be_called_is_refused(target: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(IRError, match=message):
        run(target, double(2), **attrs)


def reference_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_vocabulary_parallel_cross_entropy_equals_the_whole(shards: int) -> None:
    """Loss and gradient, with ignored targets, from max, sum of exp and picked logit of each shard."""
    torch.manual_seed(0)
    logits, target = double(2, 5, 8).mul_(30), torch.randint(0, 8, (2, 5))
    target[0, 1] = target[1, 4] = -100
    whole = logits.clone().requires_grad_()
    expected = reference_loss(whole, target)
    expected.backward()

    size = 8 // shards
    parts = [part.clone().requires_grad_() for part in logits.split(size, -1)]
    top = torch.stack([losses.row_max(part) for part in parts]).amax(0)
    stats = sum(
        losses.cross_entropy_stats(part, target, top, start=i * size, dtype=torch.float64)
        for i, part in enumerate(parts)
    )
    assert isinstance(stats, Tensor)
    loss = losses.cross_entropy_from_stats(stats, target)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    assert whole.grad is not None
    torch.testing.assert_close(torch.cat([part.grad for part in parts], -1), whole.grad)


def test_cross_entropy_stats_passes_gradcheck() -> None:
    logits, target = double(3, 4).requires_grad_(), torch.tensor([5, 6, 0])
    top = losses.row_max(logits) + 1.0
    assert torch.autograd.gradcheck(
        lambda x: losses.cross_entropy_stats(x, target, top, start=4, dtype=torch.float64), (logits,)
    )


def test_cross_entropy_and_its_denominator() -> None:
    logits, target, weight = double(2, 5, 8), torch.randint(0, 8, (2, 5)), double(8).abs()
    target[0, 1] = -100
    torch.testing.assert_close(losses.cross_entropy(logits, target), reference_loss(logits, target))
    mean = losses.cross_entropy(logits, target, weight) / losses.count_targets(target, weight, dtype=torch.float64)
    torch.testing.assert_close(mean, F.cross_entropy(logits.flatten(0, 1), target.flatten(), weight))
    assert losses.count_targets(target, dtype=torch.float64).item() == 9.0


def test_embedding_shards_sum_to_the_embedding() -> None:
    """Padding included: its row is looked up and gets no gradient."""
    ids = torch.randint(0, 8, (3, 4))
    ids[0, 0] = 5
    table = double(8, 3).requires_grad_()
    expected = F.embedding(ids, table, padding_idx=5)
    gradient = torch.randn_like(expected)
    (want,) = torch.autograd.grad(expected, table, gradient)
    parts = [
        own.embedding_shard(part, ids, start=4 * i, padding_idx=5) for i, part in enumerate(table.split(4))
    ]
    torch.testing.assert_close(parts[0] + parts[1], expected)
    (got,) = torch.autograd.grad(parts[0] + parts[1], table, gradient)
    torch.testing.assert_close(got, want)


def test_attention_of_a_slice_of_rows() -> None:
    """Rows of causal attention computed apart are the rows of the whole, grouped heads included."""
    q, k, v = double(2, 4, 6, 8), double(2, 2, 6, 8), double(2, 2, 6, 8)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    rows = [own.sdpa_rows(q[:, :, s : s + 3], k, v, start=s) for s in (0, 3)]
    torch.testing.assert_close(torch.cat(rows, dim=2), whole)


def test_row_max_and_detach_stop_the_gradient() -> None:
    x = double(2, 3).requires_grad_()
    assert not losses.row_max(x).requires_grad
    assert not own.detach(x).requires_grad
