"""The errors that autopar raises, one class for each user mistake, and its warnings."""

from autopar.ir.errors import (
    AutoparError,
    FileFormatError,
    InfeasibleError,
    IRError,
    IslandWarning,
    LimitReachedError,
    MismatchError,
    ProbeError,
    RuleError,
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
    "IslandWarning",
    "LimitReachedError",
    "MismatchError",
    "ProbeError",
    "RuleError",
    "TraceError",
    "UnsupportedError",
    "UsageError",
    "VerificationError",
]
