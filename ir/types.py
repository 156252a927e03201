"""Element types and tensor types: global shapes only.

Local shapes are a function of (type, layout, mesh) and are never stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

# Name in the IR -> bytes of one element.
DTYPE_BYTES: dict[str, int] = {
    "f64": 8, "f32": 4, "bf16": 2, "f16": 2,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1, "c128": 16, "c64": 8,
}  # fmt: skip

FLOAT_DTYPES = ("f64", "f32", "bf16", "f16")
COMPLEX_DTYPES = ("c128", "c64")

# What an attribute of a node may hold. Element types are their IR names.
Attr: TypeAlias = "None | bool | int | float | str | tuple[Attr, ...]"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and *global* shape of a value."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"unknown element type {self.dtype!r}")

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @classmethod
    def parse(cls, text: str) -> TensorType:
        """Inverse of ``str``. Raises ValueError for what is no type."""
        dtype, bracket, extents = text.removesuffix("]").partition("[")
        if not bracket or not text.endswith("]"):
            raise ValueError(f"not a tensor type: {text!r}, expected one such as f32[2,4]")
        return cls(dtype, tuple(int(extent) for extent in extents.split(",") if extent))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * DTYPE_BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES

    @property
    def is_complex(self) -> bool:
        return self.dtype in COMPLEX_DTYPES

    @property
    def has_gradient(self) -> bool:
        """Whether values of this element type can have a gradient."""
        return self.is_float or self.is_complex
