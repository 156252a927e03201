"""All experts at once by the GPU's kernels, against one after the other in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autopar.runtime import experts_dense, experts_fused
from tests.gpu.alone import GPU
from tests.moe.plain import Sizes, operands
from tests.moe.test_engines import INDICES, differentiated

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

OFF = 2e-2  # of the largest entry, in bf16


def small(given: list[Tensor | None]) -> list[Tensor | None]:
    """With results below 1: the gradient of a large one's cosine is another after its last digit."""
    up, down = given[3], given[4]
    assert up is not None and down is not None
    return [*given[:3], up / up.shape[-1] ** 0.5, down / down.shape[-1] / 2, *given[5:]]


def on_the_gpu(given: list[Tensor | None], dtype: torch.dtype) -> list[Tensor | None]:
    def moved(x: Tensor) -> Tensor:
        return x.detach().to(GPU, dtype).requires_grad_() if x.is_floating_point() else x.to(GPU)

    return [None if x is None else moved(x) for x in given]


@pytest.mark.parametrize("way", ["grouped", "by expert", "dense"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_the_kernel_of_the_gpu_is_one_after_the_other(
    index: Tensor | None, transposed: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts without rows, and rows of experts that are elsewhere, which the kernel leaves undefined."""
    monkeypatch.setattr(experts_fused, "_LONG_FLOPS", 0 if way == "by expert" else float("inf"))
    monkeypatch.setattr(experts_dense, "_LEAST_WIDTH", 1 if way == "dense" else 1000)
    sizes = Sizes(hidden=32, inner=48)
    given = small(operands(sizes, index=index, transposed=transposed, biased=True, marked=transposed))
    how = {"transposed": transposed, "kept_factor": 1.25}
    short = on_the_gpu(given, torch.bfloat16)
    x, weight, up, down = (part for part in (short[0], short[2], short[3], short[4]) if part is not None)
    assert experts_fused.usable(x, weight.numel(), up, down)
    assert experts_dense.usable(x, weight.numel(), up, down) == (way == "dense")
    poison = torch.full((2**22,), float("nan"), dtype=torch.bfloat16, device=GPU)
    del poison  # what is not written is NaN
    made = differentiated(short, **how)
    monkeypatch.setattr(experts_dense, "_LEAST_WIDTH", 1000)
    exact = differentiated(on_the_gpu(short, torch.float64), **how)
    for found, wanted in zip(made, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=OFF * float(wanted.detach().abs().max() + 1))
