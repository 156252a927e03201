"""What cannot be traced is refused by name, with the module and the line of the user's own forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from autopar.ir.errors import TraceError, UnsupportedError
from autopar.passes.trace import trace
from tests.trace.models import MLP


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)  # type: ignore[no-any-return]


def test_control_flow_on_data_names_module_and_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError) as caught:
        trace(Outer(Branching()), (torch.randn(2, 3),))
    message = str(caught.value)
    assert "module: block.1 (Branching)" in message
    assert "test_refused.py:" in message
    assert "if x.sum() > 0:" in message
    assert "values of a tensor" in message
    assert caught.value.details["module"] == "block.1"
    assert caught.value.exit_code == 3
    assert "Traceback" not in message
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_an_error_of_the_model_keeps_its_words() -> None:
    with pytest.raises(TraceError, match="reduction dim") as caught:
        trace(MLP(), (torch.randn(2, 5),))
    assert "module: first (Linear)" in str(caught.value)
    assert "models.py:" in str(caught.value)


class Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear = self.linear.to(torch.float32)
        return self.linear.to(torch.float64)(x.double())  # type: ignore[no-any-return]


def test_parameters_that_forward_casts_are_refused_by_the_module_that_has_them() -> None:
    model = Moving()
    with pytest.raises(TraceError, match=r"casts or moves the parameters of a module.*\n  module: linear \(Linear\)"):
        trace(model, (torch.randn(2, 3),))
    assert model.linear.weight.dtype is torch.float32


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].cumsum(0)


class Custom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubling.apply(x)  # type: ignore[no-any-return]


def test_custom_autograd_function_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"test_refused\.Doubling, a torch\.autograd\.Function"):
        trace(Outer(Custom()), (torch.randn(2, 3),))
    with pytest.raises(UnsupportedError, match=r"module: block\.1 \(Custom\)"):
        trace(Outer(Custom()), (torch.randn(2, 3),))
    x = torch.randn(2, requires_grad=True)
    assert torch.equal(Custom()(x), 2 * x)


class Casting(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)


class Picking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


class Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.abs().argmax().item()


class Complex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft(x))


class Resizing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.unsqueeze_(0)
        return y


class Diagonal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.diagonal().mul_(2)
        return y


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (Casting(), r"autocast inside the model.*pass mixed_precision"),
        (Picking(), r"a shape depends on the values of a tensor.*test_refused\.py"),
        (Counting(), r"depends on the values of a tensor"),
        (Complex(), r"element type complex64 is not supported in aten\._fft_r2c.*test_refused\.py"),
        (Resizing(), r"in-place operation aten\.unsqueeze_\.default is not supported.*test_refused\.py"),
        (Diagonal(), r"in-place write through a view made by aten\.diagonal.*test_refused\.py"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_not_supported_is_refused_with_its_line(model: nn.Module, match: str) -> None:
    with pytest.raises(TraceError, match=match):
        trace(model, (torch.randn(6, 6),))


def test_a_parameter_written_in_forward_is_refused() -> None:
    class Renormalising(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.first.weight.mul_(0.9)
            return super().forward(x)

    with pytest.raises(TraceError, match=r"first\.weight"):
        trace(Renormalising(), (torch.randn(2, 6),))


def test_a_plain_tensor_on_meta_is_refused_by_name() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.ones(3, device="meta")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table

    with pytest.raises(UnsupportedError, match="table is a plain tensor attribute"):
        trace(Table(), (torch.randn(2, 3),))
