"""The errors that autopar raises, one class for each user mistake."""

from autopar.ir.errors import (
    AutoparError,
    FileFormatError,
    InfeasibleError,
    IRError,
    LimitReachedError,
    MismatchError,
    ProbeError,
    TraceError,
    UnsupportedError,
    UsageError,
    VerificationError,
)

__all__ = [
    "AutoparError",
    "FileFormatError",
    "IRError",
    "InfeasibleError",
    "LimitReachedError",
    "MismatchError",
    "ProbeError",
    "TraceError",
    "UnsupportedError",
    "UsageError",
    "VerificationError",
]
