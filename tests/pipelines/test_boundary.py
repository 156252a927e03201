"""Values cross between stages as they are, whatever types torch knows how to send."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autopar.runtime import boundary
from autopar.runtime.dtypes import TORCH_DTYPES

NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
VALUES = [
    torch.tensor([True, False]),
    torch.tensor([0, 255], dtype=torch.uint8),
    torch.tensor([[-(2**31), 2**31 - 1], [0, 0x7FC00001]], dtype=torch.int32),  # the last one reads as no number
    torch.tensor([-(2**63), -1, 2**63 - 1, 0x7FF8000000000001]),
    torch.tensor(7),
]


@pytest.fixture(params=[True, False])
def _knows_whole_numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "WHOLE_NUMBERS_CROSS", request.param)


def crossed(values: list[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """What arrives, and what was received for it."""
    sent = boundary.leaving(values)
    received = tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in sent)
    return boundary.arriving(received, [NAMES[value.dtype] for value in values]), received


@pytest.mark.usefixtures("_knows_whole_numbers")
@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value.dtype))
def test_a_whole_number_arrives_as_it_left(value: Tensor) -> None:
    (arrived,), _ = crossed([value])
    assert arrived.dtype == value.dtype
    assert torch.equal(arrived, value)
    assert not arrived.requires_grad


@pytest.mark.usefixtures("_knows_whole_numbers")
def test_gradients_go_back_to_real_numbers_and_are_zero_where_nothing_uses_them() -> None:
    used, unused = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    arrived, received = crossed([used * 2, VALUES[3], unused])
    (arrived[0] * 5).sum().backward()
    assert torch.equal(arrived[1], VALUES[3])
    assert [None if value.grad is None else value.grad.tolist() for value in (received[0], received[2])] == [
        [5.0] * 3, [0.0] * 3,
    ]  # fmt: skip


def test_complex_numbers_cross_as_pairs_with_their_gradients() -> None:
    used, table = torch.randn(3, dtype=torch.complex128, requires_grad=True), torch.randn((), dtype=torch.complex64)
    arrived, received = crossed([used * 1j, table])
    assert torch.equal(arrived[0], used * 1j)
    assert torch.equal(arrived[1], table)
    assert [(value.dtype, value.shape) for value in received] == [(torch.float64, (3, 2)), (torch.float32, (2,))]
    torch.view_as_real(arrived[0] * arrived[1]).sum().backward()
    assert all(value.requires_grad and value.grad is not None for value in received)


def test_where_torch_sends_a_gradient_back_for_everything_everything_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "WHOLE_NUMBERS_CROSS", False)
    used = torch.ones(3, dtype=torch.float64, requires_grad=True)
    arrived, received = crossed([used * 2, *VALUES])
    arrived[0].sum().backward()
    assert all(value.grad is not None for value in received)
