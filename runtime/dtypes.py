"""Element types of the IR as torch's."""

from __future__ import annotations

import torch
from torch import Tensor

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c128": torch.complex128,
    "c64": torch.complex64,
}

IR_DTYPES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def as_real(x: Tensor) -> Tensor:
    """``x``, a complex one as pairs in the same memory: not every backend sends complex numbers."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
