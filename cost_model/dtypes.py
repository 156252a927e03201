"""Element types by their short names: size, and the device figure that is their peak rate."""

from __future__ import annotations

from typing import Literal, get_args

from autopar.ir.errors import UsageError
from autopar.ir.types import DTYPE_BYTES

Dtype = Literal[
    "f64", "f32", "bf16", "f16", "f8e4m3", "f8e5m2", "i64", "i32", "i16", "i8", "u8", "bool", "c128", "c64"
]  # fmt: skip

_BYTES = {**DTYPE_BYTES, "f8e4m3": 1, "f8e5m2": 1}

_PEAK_KEYS: dict[str, str] = {
    "f64": "fp64_tflops", "f32": "fp32_tflops", "bf16": "bf16_tflops", "f16": "fp16_tflops",
    "f8e4m3": "fp8_tflops", "f8e5m2": "fp8_tflops",
}  # fmt: skip


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element. Raises ``UsageError`` for an unknown name."""
    try:
        return _BYTES[dtype]
    except KeyError:
        raise UsageError(
            f"unknown element type {dtype!r}; expected one of {', '.join(get_args(Dtype))}"
        ) from None


def peak_key(dtype: str) -> str | None:
    """The device key that holds the peak rate of ``dtype``; None for integers, bool and complex, priced by bytes."""
    dtype_bytes(dtype)
    return _PEAK_KEYS.get(dtype)


def sent_back_bytes(dtype: str, kind: str, *, parameter: bool) -> int:
    """Bytes of one element as a collective of the backward pass carries it.

    Gradients of parameters in half precision are added up in float32.
    """
    wide = parameter and kind in ("all_reduce", "reduce_scatter") and dtype in ("bf16", "f16")
    return dtype_bytes("f32" if wide else dtype)
