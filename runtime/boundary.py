"""What crosses between pipeline stages, as the point-to-point transfers of torch want it.

Every real number that crosses takes a gradient along, even if it needs none (a frozen embedding) or gives none (a value
that a stage only hands on): then it is zero. Both sides know so without asking each other. Where torch knows no others,
the bits of whole numbers cross as those of real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autopar.ir.pipeline import Stage
from autopar.ir.program import Program
from autopar.runtime.dtypes import TORCH_DTYPES, as_real
from autopar.runtime.torch_private import WHOLE_NUMBERS_CROSS


class _Entered(torch.autograd.Function):
    """Values as they are; the gradient of one that nothing uses is zero instead of absent."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> Any:
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return tuple(gradient.contiguous() for gradient in gradients)  # absent ones are materialised


class _Tied(torch.autograd.Function):
    """A value that needs no gradient, as one that does."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor) -> Any:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None


class _Left(torch.autograd.Function):
    """A value as it is, in a tensor of its own: torch's split backward detaches what a stage returned in place, and
    operations of the stage may have saved it for the gradients of their parameters."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Any:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


def arriving(received: Sequence[Tensor], dtypes: Sequence[str]) -> list[Tensor]:
    """Values of the stage before, as the program knows them."""
    found = list(received)
    real = [at for at, value in enumerate(found) if value.requires_grad]
    if real:
        entered = _Entered.apply(*(found[at] for at in real))  # type: ignore[no-untyped-call]
        for at, value in zip(real, entered, strict=True):
            found[at] = value
    return [_read(value, TORCH_DTYPES[dtype]) for value, dtype in zip(found, dtypes, strict=False)]


def leaving(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Values for the next stage."""
    return tuple(_leaving(value) for value in results)


def _leaving(value: Tensor) -> Tensor:
    value = as_real(value)
    bits, sent = _crossing(value.dtype)
    value = value.to(bits).contiguous()
    value = value if bits == sent else value.view(sent)
    if not (torch.is_grad_enabled() and value.is_floating_point()):
        return value
    made: Tensor
    if value.requires_grad:
        made = _Left.apply(value)  # type: ignore[no-untyped-call]
    else:
        anchor = torch.zeros((), dtype=value.dtype, device=value.device, requires_grad=True)
        made = _Tied.apply(value, anchor)  # type: ignore[no-untyped-call]
    return made


def _crossing(dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """The type that values are converted to, and the type as which its bits cross; complex ones cross as pairs."""
    if dtype.is_complex:
        dtype = dtype.to_real()
    if dtype.is_floating_point:
        return dtype, dtype
    if WHOLE_NUMBERS_CROSS:
        return (torch.uint8, torch.uint8) if dtype == torch.bool else (dtype, dtype)
    return (dtype, torch.float64) if dtype == torch.int64 else (torch.int32, torch.float32)


def _read(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo ``_crossing``."""
    if dtype.is_complex:
        return torch.view_as_complex(value)
    bits, sent = _crossing(dtype)
    return value if sent == dtype else value.detach().view(bits).to(dtype)


def received_like(stage: Stage) -> tuple[Tensor, ...]:
    """The shapes and types that arrive, on meta."""
    return tuple(_like(stage.program, name) for name in stage.receives)


def sent_like(stage: Stage) -> tuple[Tensor, ...]:
    """The shapes and types that leave; of the last stage the loss, with one element."""
    if stage.sends:
        return tuple(_like(stage.program, name) for name in stage.sends)
    assert stage.program.loss is not None
    loss = _like(stage.program, stage.program.loss)
    return (torch.empty(1, dtype=loss.dtype, device="meta", requires_grad=True),)


def _like(program: Program, name: str) -> Tensor:
    value = program.graph.values()[name]
    assert value.layout is not None
    _, dtype = _crossing(TORCH_DTYPES[value.type.dtype])
    shape = value.layout.local_shape(value.type.shape) + (2,) * value.type.is_complex
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
