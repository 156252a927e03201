"""The operation ``autopar::experts`` against a loop over tokens, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autopar.ir.errors import IRError
from autopar.ir.gates import ACTIVATIONS, Gate
from autopar.runtime.experts import expert_bias, experts
from tests.moe import plain
from tests.moe.plain import Sizes, operands

GPT_OSS = "silu-glu pairs alpha=1.702 limit=7.0 shift=1.0"


def compared(given: list[Tensor | None], how: str, **options: Any) -> None:
    """Raise AssertionError where result or gradients differ from the loop's."""
    found = experts(*given, gate=how, **options)  # type: ignore[arg-type]
    expected = plain.experts(*given, how=how, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    leaves = [x for x in given if x is not None and x.requires_grad]
    seed = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    if not expected.requires_grad:
        assert all(not bool(x.any()) for x in torch.autograd.grad(found, leaves, seed))
        return
    want = torch.autograd.grad(expected, leaves, seed, allow_unused=True, materialize_grads=True)
    for got, wanted in zip(torch.autograd.grad(found, leaves, seed), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("how", [*ACTIVATIONS, *(f"{name}-glu" for name in ACTIVATIONS), "silu-glu pairs", GPT_OSS])
def test_every_gate_is_that_of_the_loop(how: str, transposed: bool) -> None:
    """Both ways in which weights are kept, with a bias."""
    columns = Gate.parse(how).columns
    given = operands(Sizes(), columns=columns, transposed=transposed, biased=True)
    assert given[0] is not None
    given[0] = (given[0] * 3).detach().requires_grad_()  # some beyond the limit
    compared(given, how, transposed=transposed)


@pytest.mark.parametrize(
    "index",
    [
        torch.zeros(7, 2, dtype=torch.int64),
        torch.tensor([[0, 3]] * 7),
        torch.tensor([[-1, 4], [9, 2], [4, 4], [1, -3], [3, 0], [5, 5], [2, 2]]),
        torch.full((7, 2), 4),
    ],
    ids=["all to one expert", "empty experts", "some to no expert", "all to no expert"],
)
def test_any_routing_is_exact(index: Tensor) -> None:
    """Whatever the router chose, an expert twice for one token or none at all."""
    compared(operands(Sizes(), index=index, biased=True), "silu-glu")


@pytest.mark.parametrize("sizes", [Sizes(tokens=1, each=1), Sizes(each=1), Sizes(tokens=9, each=4)], ids=str)
def test_tokens_may_have_any_number_of_experts(sizes: Sizes) -> None:
    """One, some or all of them."""
    compared(operands(sizes), "gelu-glu")


@pytest.mark.parametrize("how", ["relu", "silu-glu"])
def test_what_a_token_does_not_keep_is_zero_and_the_rest_times_a_factor(how: str) -> None:
    """Dropout inside experts, of columns of what the gate gives."""
    given = operands(Sizes(), columns=Gate.parse(how).columns, marked=True)
    compared(given, how, kept_factor=1.25)


def test_parts_of_the_experts_add_up_to_all() -> None:
    """Each device has some, ``start`` being the first: its result is a summand."""
    x, index, weight, up, down, bias = operands(Sizes(), biased=True)
    assert up is not None and down is not None and bias is not None
    for start, end in ((0, 1), (1, 4)):
        part = [x, index, weight, up[start:end].detach().requires_grad_(), down[start:end].detach().requires_grad_(),
                bias[start:end].detach().requires_grad_()]  # fmt: skip
        compared(part, "silu-glu", start=start)


def test_equal_calls_have_equal_bits() -> None:
    """Nothing depends on the order in which rows happen to be added."""
    given = operands(Sizes(tokens=64, each=3, experts=8))
    one, other = (experts(*given, gate="silu-glu") for _ in range(2))  # type: ignore[arg-type]
    assert torch.equal(one, other)


def test_a_recomputed_call_has_the_gradients_of_one_that_is_kept() -> None:
    """As ``torch.utils.checkpoint`` runs it again in the backward pass."""
    given = operands(Sizes(), biased=True)
    leaves = [x for x in given if x is not None and x.requires_grad]
    kept = torch.autograd.grad(experts(*given, gate="silu-glu").sum(), leaves)  # type: ignore[arg-type]
    again = checkpoint(lambda *x: experts(*x, gate="silu-glu"), *given, use_reentrant=False)
    assert all(map(torch.equal, kept, torch.autograd.grad(again.sum(), leaves)))


def test_weights_of_a_finer_type_are_added_up_in_it() -> None:
    """Routers compute in float32; the result has the type of the tokens."""
    x, index, weight, up, down, _ = operands(Sizes())
    assert x is not None and weight is not None and up is not None and down is not None
    half = [v.to(torch.bfloat16).detach().requires_grad_() for v in (x, up, down)]
    share = weight.float().detach().requires_grad_()
    found = experts(half[0], index, share, half[1], half[2], gate="silu-glu")  # type: ignore[arg-type]
    expected = plain.experts(x, index, weight, up, down, None, how="silu-glu")  # type: ignore[arg-type]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=0.1, atol=0.2)
    found.sum().backward()
    assert share.grad is not None and share.grad.dtype == torch.float32
    assert all(v.grad is not None and v.grad.dtype == torch.bfloat16 for v in half)


class Layer(torch.nn.Module):
    def forward(self, x: Tensor, index: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return experts(x * 2, index, weight, up, down, gate="silu-glu")


def test_an_exported_program_has_it_as_one_operation() -> None:
    """Neither the sort nor the products show."""
    given = tuple(operands(Sizes())[:5])
    program = torch.export.export(Layer(), given, strict=False)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["aten.mul.Tensor", "autopar.experts.default"]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, of the graph that goes on
def test_a_compiled_function_calls_it() -> None:
    """Forward and backward, between its graphs."""
    given = operands(Sizes())[:5]
    leaves = [x for x in given if x is not None and x.requires_grad]
    compiled = torch.compile(Layer(), backend="aot_eager")
    found, expected = compiled(*given), Layer()(*given)
    torch.testing.assert_close(found, expected)
    both = (torch.autograd.grad(made.sum(), leaves) for made in (found, expected))
    for got, wanted in zip(*both, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("start", [0, 1])
def test_the_second_bias_is_a_sum_of_its_own(start: int) -> None:
    """Weighted by the router, of the experts that are here."""
    _, index, weight, *_ = operands(Sizes())
    assert index is not None and weight is not None
    bias = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    found = expert_bias(index, weight, bias, start=start)
    expected = torch.stack([
        sum((w * bias[int(e) - start] for e, w in zip(row, share, strict=True) if 0 <= e - start < 3),
            torch.zeros(6, dtype=torch.float64))
        for row, share in zip(index, weight, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    both = (torch.autograd.grad(made.square().sum(), [weight, bias]) for made in (found, expected))
    for got, wanted in zip(*both, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", ["silu", "gelu_tanh-glu", "relu2", "silu-glu pairs", GPT_OSS, "gelu-glu limit=2.5"])
def test_a_gate_reads_back_from_its_text(text: str) -> None:
    """Plans hold it."""
    assert str(Gate.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "swish", "silu-gl", "silu pairs", "silu-glu limit", "silu-glu x=1.0", "silu limit=1.0"]
)
def test_what_is_no_gate_is_refused(text: str) -> None:
    """With the text and an example of one."""
    with pytest.raises(IRError, match="is no gate of experts, expected one such as 'silu-glu'"):
        Gate.parse(text)
