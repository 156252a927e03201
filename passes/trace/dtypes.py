"""Element types: torch's objects and the IR's names."""

from __future__ import annotations

import torch

from autopar.ir.errors import UnsupportedError
from autopar.ir.types import DTYPE_BYTES, TensorType

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool, "c128": torch.complex128, "c64": torch.complex64,
}  # fmt: skip

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
assert TORCH_DTYPES.keys() == DTYPE_BYTES.keys()


def dtype_name(dtype: torch.dtype, where: str = "") -> str:
    """The IR's name of ``dtype``; UnsupportedError if it has none."""
    if dtype not in _NAMES:
        raise UnsupportedError(
            f"element type {str(dtype).removeprefix('torch.')} is not supported{where and f' ({where})'}; "
            f"supported: {', '.join(_NAMES.values())}"
        )
    return _NAMES[dtype]


def tensor_type(tensor: torch.Tensor, where: str = "") -> TensorType:
    """The type of a tensor with concrete sizes; UnsupportedError if a size depends on data."""
    if not all(type(size) is int for size in tensor.shape):
        raise UnsupportedError(
            f"a shape depends on the values of a tensor: {list(tensor.shape)}{where and f' ({where})'}; "
            f"only shapes that follow from the shapes of the inputs are supported"
        )
    return TensorType(dtype_name(tensor.dtype, where), tuple(tensor.shape))
