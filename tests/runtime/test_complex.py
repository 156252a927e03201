"""Complex tables and values on real processes, which send real numbers alone."""

from __future__ import annotations

import pytest
import torch

from autopar.runtime.autopar_ops import as_complex
from tests.harness import each, run_processes
from tests.runtime.rotary import ROTARY, trained

AXES = (("dp", "pp"), pytest.param(("tp", "cp"), marks=pytest.mark.slow))


@pytest.mark.parametrize("axes", AXES, ids="-".join)
def test_a_model_with_complex_tables_trains_on_two_processes_as_on_one(axes: tuple[str, ...]) -> None:
    """Losses, gradients, parameters and the tables of ``full_state_dict``; between stages too."""
    works = [(trained, ({axis: 2}, 2 if axis == "pp" else 1)) for axis in axes]
    worst, _ = run_processes(2, each, works)
    assert all(0 < error <= ROTARY.tolerance for error in worst)


@pytest.mark.parametrize(
    "x",
    [torch.randn(4, 3, 2), torch.randn(3, 2, 4).transpose(1, 2).transpose(0, 1)[..., :2], torch.randn(4, 7)[:, 1:3],
     torch.randn(2, 6).t()[:, :], torch.randn(2)],
    ids=["pairs", "turned", "odd strides", "far apart", "one"],
)  # fmt: skip
def test_pairs_are_complex_numbers_however_they_lie_in_memory(x: torch.Tensor) -> None:
    x.requires_grad_()
    made = as_complex(x)
    assert torch.equal(torch.view_as_real(made), x)
    (gradient,) = torch.autograd.grad(torch.view_as_real(made).square().sum(), x)
    assert torch.equal(gradient, 2 * x)
    assert (as_complex(torch.randn(3, 2)).data_ptr() % 8) == 0
