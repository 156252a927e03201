"""The kernels of all experts at once against that of one after the other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.runtime import experts_dense, experts_fused
from autopar.runtime.experts import experts
from tests.moe.plain import Sizes, operands

INDICES = {
    "every expert": None,
    "all to one expert": torch.zeros(7, 2, dtype=torch.int64),
    "empty experts": torch.tensor([[0, 3]] * 7),
    "some elsewhere": torch.tensor([[-1, 4], [9, 2], [4, 4], [1, -3], [3, 0], [5, 5], [2, 2]]),
    "all elsewhere": torch.full((7, 2), 4),
}


def grouped(left: Tensor, right: Tensor, *, offs: Tensor) -> Tensor:
    """``grouped_mm`` by its documentation, in any element type; what it leaves undefined is NaN."""
    bounds = [0, *offs.tolist()]
    if right.dim() == 3:
        out = left.new_full((left.shape[0], right.shape[2]), float("nan"))
        for weights, (first, last) in zip(right, itertools.pairwise(bounds), strict=True):
            out[first:last] = left[first:last] @ weights
        return out
    return torch.stack([left[:, a:b] @ right[a:b] for a, b in itertools.pairwise(bounds)])


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The dimensions of what ``grouped_mm`` is given from here on, which is then ``grouped``."""
    products: list[int] = []

    def product(left: Tensor, right: Tensor, *, offs: Tensor) -> Tensor:
        products.append(right.dim())
        return grouped(left, right, offs=offs)

    monkeypatch.setattr(F, "grouped_mm", product)
    return products


def in_float32(given: list[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None else x.float().detach().requires_grad_() if x.is_floating_point() else x for x in given]


def differentiated(given: list[Tensor | None], **options: Any) -> list[Tensor]:
    """The result and every gradient."""
    leaves = [x for x in given if x is not None and x.requires_grad]
    result = experts(*given, gate="silu-glu", **options)  # type: ignore[arg-type]
    return [result, *torch.autograd.grad(result.cos().sum(), leaves)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_all_at_once_is_one_after_the_other(
    index: Tensor | None, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of experts that are elsewhere are undefined in between, and nothing of them comes through."""
    given = operands(Sizes(), index=index, transposed=transposed, biased=True, marked=transposed)
    how = {"transposed": transposed, "kept_factor": 1.25}
    expected = differentiated(given, **how)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: True)
    monkeypatch.setattr(F, "grouped_mm", grouped)
    for found, wanted in zip(differentiated(given, **how), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("index", [None, INDICES["all to one expert"], INDICES["empty experts"]], ids=str)
def test_nothing_is_masked_where_every_expert_is_here(
    index: Tensor | None, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = operands(Sizes(), index=index, biased=True)
    expected = differentiated(given)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: fused)
    monkeypatch.setattr(F, "grouped_mm", grouped)
    for complete in (False, True):
        with torch.profiler.profile() as profile:
            found = differentiated(given, complete=complete)
        masked = "aten::masked_fill_" in {event.key for event in profile.key_averages()}
        assert masked == (fused and not complete)
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_choice_of_weight_zero_still_has_a_gradient(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a router of sigmoids gives where one underflows: all at once, gradients are multiplied and divided by it."""
    given = operands(Sizes())
    weight = given[2]
    assert weight is not None
    given[2] = torch.stack([weight[:, 0], torch.zeros(len(weight), dtype=torch.float64)], 1).detach().requires_grad_()
    expected = differentiated(given)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: True)
    monkeypatch.setattr(F, "grouped_mm", grouped)
    found = differentiated(in_float32(given) if dtype == torch.float32 else given)
    assert bool(found[2][:, 1].all())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_parameters_may_lie_elsewhere_in_backward(index: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered anew, where the kernel does not take them: what all at once left is read one after the other."""
    given = operands(Sizes(), index=index, biased=True)
    leaves = [x for x in given if x is not None and x.requires_grad]
    _, *expected = differentiated(given)
    monkeypatch.setattr(F, "grouped_mm", grouped)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: True)
    result = experts(*given, gate="silu-glu")  # type: ignore[arg-type]
    monkeypatch.setattr(experts_fused, "usable", lambda *_: False)
    for found, wanted in zip(torch.autograd.grad(result.cos().sum(), leaves), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_few_rows_of_an_expert_are_multiplied_the_other_way_round(
    index: Tensor | None, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU in float32, where weights are large; what is not written is NaN."""
    small = in_float32(operands(Sizes(), index=index, transposed=transposed, biased=True))
    expected = differentiated(small, transposed=transposed)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: True)
    monkeypatch.setattr(experts_fused, "_FEW_BYTES", 0)
    products = counted(monkeypatch)
    torch.use_deterministic_algorithms(True)
    try:
        found = differentiated(small, transposed=transposed)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)
    assert products.count(3) == 2, "in one direction it pays"


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_long_products_of_a_gpu_are_made_one_after_the_other(
    index: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, here: nothing is left to ``grouped_mm``."""
    given = operands(Sizes(), index=index, biased=True)
    expected = differentiated(given)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: True)
    monkeypatch.setattr(experts_fused, "_LONG_FLOPS", 0)
    monkeypatch.setattr(experts_fused, "_on_gpu", lambda _: True)
    products = counted(monkeypatch)
    for found, wanted in zip(differentiated(given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert not products


def test_torch_takes_the_calls_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own ``grouped_mm`` in float32, on widths of whole 16 bytes."""
    index = INDICES["some elsewhere"]
    small = in_float32(operands(Sizes(hidden=8, inner=12), index=index))
    assert experts_fused.aligned(*(x for x in (small[0], small[3], small[4]) if x is not None))
    expected = differentiated(small)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: True)
    for found, wanted in zip(differentiated(small), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_widths_that_the_kernel_does_not_take_are_known() -> None:
    """A matrix of 6 float32 columns, one that begins in the middle of 16 bytes, one that is turned."""
    rows = torch.zeros(4, 8)
    assert experts_fused.aligned(rows)
    assert not experts_fused.aligned(torch.zeros(4, 6))
    assert not experts_fused.aligned(torch.zeros(33)[1:].view(4, 8))
    assert not experts_fused.aligned(torch.zeros(8, 8).T)


def test_gradients_that_nobody_wants_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """With frozen experts the tokens and the weights still learn, in both kernels, and no product is made for more."""
    given = [None if x is None else x.detach() for x in operands(Sizes(), biased=True)]
    for leaf in (given[0], given[2]):
        assert leaf is not None
        leaf.requires_grad_()
    products = counted(monkeypatch)
    expected = differentiated(given)
    monkeypatch.setattr(experts_fused, "usable", lambda *_: True)
    for found, wanted in zip(differentiated(given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert products == [3, 3, 3, 3]
    monkeypatch.setattr(experts_dense, "usable", lambda *_: True)
    with torch.profiler.profile() as profile:
        dense = differentiated(given)
    for found, wanted in zip(dense, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    made = {event.key: event.count for event in profile.key_averages()}
    assert made["aten::baddbmm"] + made["aten::bmm"] == 4


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_every_token_may_meet_every_expert(
    index: Tensor | None, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, and in float32 with weights of choices that are wider; equal calls have equal bits."""
    given = operands(Sizes(), index=index, transposed=transposed, biased=True, marked=transposed)
    how = {"transposed": transposed, "kept_factor": 1.25}
    expected = differentiated(given, **how)
    monkeypatch.setattr(experts_dense, "usable", lambda *_: True)
    monkeypatch.setattr(experts_fused, "usable", no_other)
    for found, wanted in zip(differentiated(given, **how), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    narrow = in_float32(given)
    narrow[2] = given[2]
    torch.use_deterministic_algorithms(True)
    try:
        once, again = differentiated(narrow, **how), differentiated(narrow, **how)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other, wanted in zip(once, again, expected, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(one, other)


def no_other(*_: object) -> bool:
    raise AssertionError("another kernel runs")


def test_an_expert_that_nobody_chose_may_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that a token chose twice, or with weight 0, differ."""
    given = operands(Sizes(), index=torch.tensor([[0, 3], [1, 1], [3, 0], [1, 0], [0, 1], [3, 3], [1, 3]]), biased=True)
    weight, up, down = given[2:5]
    assert weight is not None and up is not None and down is not None
    with torch.no_grad():
        up[2], down[2] = 1e308, 1e308  # and so may its gradients
        weight[3] = 0
    expected = differentiated(given)
    monkeypatch.setattr(experts_dense, "usable", lambda *_: True)
    for found, wanted in zip(differentiated(given), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_every_token_meets_every_expert_where_they_are_few_and_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tokens would be work, few choices leave experts out, and narrow experts are less than what is kept."""
    up, down = torch.zeros(8, 64, 1024), torch.zeros(8, 1024, 32)

    def usable(tokens: int, width: int = 1024, dtype: torch.dtype = torch.float32) -> bool:
        return experts_dense.usable(torch.zeros(tokens, width, dtype=dtype), 2 * tokens, up, down)

    assert not usable(16)
    monkeypatch.setattr(experts_dense, "_on_gpu", lambda _: True)
    assert usable(4) and usable(64)
    assert not usable(0) and not usable(3) and not usable(65) and not usable(16, 64) and not usable(129, 8192)
    assert not usable(16, dtype=torch.bfloat16)
