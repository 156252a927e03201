"""Memory of large gradients on the CPU is used again, and never while somebody still has them."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from autopar.runtime import experts_fused, pages
from autopar.runtime.experts import experts

WIDTH, INNER, EXPERTS, TOKENS = 8, 64, 4, 12


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as large, and nothing is left of other tests."""
    monkeypatch.setattr(pages, "LEAST_BYTES", 1)
    monkeypatch.setattr(pages, "_freed", type(pages._freed)(list))


def leaves() -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = (TOKENS, WIDTH), (TOKENS, 2), (EXPERTS, INNER, WIDTH), (EXPERTS, WIDTH, INNER)
    return [torch.randn(shape, generator=made, dtype=torch.float64).requires_grad_() for shape in shapes]


def step(given: list[Tensor], first: int = 0) -> None:
    """Adds the gradients of the tokens to experts ``first`` and the one after it."""
    x, weight, up, down = given
    index = torch.tensor([[first, first + 1]] * TOKENS)
    experts(x, index, weight, up, down, gate="silu").square().sum().backward()


def address(tensor: Tensor | None) -> int:
    assert tensor is not None
    return tensor.data_ptr()


def test_freed_gradients_are_the_memory_of_the_next() -> None:
    """Of the same size, in any order: a step after the first maps nothing."""
    given = leaves()
    step(given)
    first = {address(given[2].grad), address(given[3].grad)}
    for each in given:
        each.grad = None
    step(given)
    assert {address(given[2].grad), address(given[3].grad)} == first


def test_memory_that_somebody_has_is_left_alone() -> None:
    """A gradient, or a view of it, outlives the step after it."""
    given = leaves()
    step(given)
    assert given[2].grad is not None
    base, view = address(given[2].grad), given[2].grad[1].T
    before = view.clone()
    given[2].grad = None
    step(given, first=2)
    assert address(given[2].grad) != base
    torch.testing.assert_close(view, before, rtol=0, atol=0)


def test_reused_memory_holds_nothing_of_what_was_there() -> None:
    """Experts without a token have gradients of zero, whatever the step before wrote there."""
    given = leaves()
    step(given, first=0)
    for each in given:
        each.grad = None
    step(given, first=2)
    for each in given[2:]:
        assert each.grad is not None
        assert not bool(each.grad[:2].any()) and bool(each.grad[2:].any())


@pytest.mark.parametrize("transposed", [False, True])
def test_experts_at_once_have_the_gradients_of_grouped_mm(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows of large experts: their sums are written where the last ones were, with those of empty experts 0."""
    found: list[list[Tensor]] = []
    for least in (1 << 40, 1):
        monkeypatch.setattr(pages, "LEAST_BYTES", least)
        monkeypatch.setattr(experts_fused, "_FEW_BYTES", 1 << 15)
        made = torch.Generator().manual_seed(0)
        shapes = (2, 64, 128), (2, 128, 64)
        up, down = (torch.randn(shape, generator=made) for shape in (shapes if transposed else shapes[::-1]))
        given = [torch.randn(3, 64, generator=made), torch.rand(3, 1, generator=made), up, down]
        given = [each.requires_grad_() for each in given]
        index = torch.tensor([[0], [7], [0]])  # none to the second, one to an expert elsewhere
        assert experts_fused.usable(given[0], 3, up, down)
        for _ in range(2):
            experts(given[0], index, *given[1:], gate="silu", transposed=transposed).square().sum().backward()
        found.append([each.grad for each in given if each.grad is not None])
    for own, others in zip(*found, strict=True):
        torch.testing.assert_close(own, others)
    assert sum(map(len, pages._freed.values())) == 2 and not bool(found[1][2][1].any())


def test_gradients_add_up() -> None:
    """A second backward adds to the first one's memory and gives its own back."""
    given, twice = leaves(), leaves()
    step(given)
    step(twice)
    step(twice)
    for one, two in zip(given, twice, strict=True):
        assert one.grad is not None and two.grad is not None
        torch.testing.assert_close(one.grad * 2, two.grad, rtol=0, atol=0)
    assert sum(map(len, pages._freed.values())) == 2


@pytest.mark.parametrize("strange", ["small", "strided", "meta"])
def test_others_are_torchs_own(strange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the C library keeps, those laid out otherwise, and those elsewhere."""
    like = torch.empty(6, 4, device="meta" if strange == "meta" else "cpu")
    if strange == "strided":
        like = like.T
    if strange == "small":
        monkeypatch.setattr(pages, "LEAST_BYTES", 97)
    made = pages.empty_like(like)
    assert (made.shape, made.stride(), made.device) == (like.shape, like.stride(), like.device)
    assert not pages._freed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_element_type_and_shape_fits(dtype: torch.dtype) -> None:
    """Memory comes in whole pages, tensors do not."""
    made = pages.empty_like(torch.empty(3, 5, 7, dtype=dtype))
    made.fill_(2)
    assert made.dtype == dtype and made.shape == (3, 5, 7) and made.is_contiguous() and float(made.sum()) == 210


def test_a_system_without_huge_pages_has_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Small)
    assert pages.empty_like(torch.empty(10)).fill_(1).sum() == 10


def test_a_process_ends_with_gradients_at_hand() -> None:
    """And with memory in the pool."""
    program = (
        "import torch; from autopar.runtime import pages; pages.LEAST_BYTES = 1\n"
        "kept = torch.nn.Parameter(torch.ones(9)); kept.grad = pages.empty_like(kept)\n"
        "pages.empty_like(torch.empty(7)); print(len(pages._freed[28]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "1\n", "")
