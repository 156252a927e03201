"""Numbers with units, as people write them: sizes, rates and durations.

``GB`` is 10^9 bytes and ``GiB`` is 2^30 bytes; ``b`` is a bit and ``B`` a byte; rates end in ``/s`` or
``ps``. Parsing is exact (rational arithmetic), so that ``32Gb/s`` is 4e9 bytes/s and nothing near it.
"""

from __future__ import annotations

import re
from fractions import Fraction

from autopar.ir.errors import UsageError

BITS_PER_BYTE = 8
MIB_BYTES = 2**20

_PREFIXES: dict[str, int] = {"": 1} | {
    prefix + suffix: (1024 if suffix else 1000) ** power
    for power, letters in enumerate(("kK", "M", "G", "T", "P"), start=1)
    for prefix in letters
    for suffix in ("", "i")
}
_DURATIONS_S: dict[str, Fraction] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_NUMBER = r"\s*(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,2})?\s*"
_SIZE = re.compile(_NUMBER + r"([kKMGTP]?i?)(B)?\s*", re.ASCII)
_RATE = re.compile(_NUMBER + r"([kKMGTP]?i?)(bit|b|B)(?:/s|ps)\s*", re.ASCII)
_DURATION = re.compile(_NUMBER + r"(ns|us|µs|ms|s|min|h)?\s*")


def _value(match: re.Match[str]) -> Fraction:
    return Fraction(match[1] + (match[2] or ""))


def parse_bytes(text: str) -> int:
    """Bytes in ``16GiB``, ``80GB`` or ``1024`` (a bare number is bytes); a part of a byte is dropped.

    Raises ``UsageError`` for anything else, also for zero.
    """
    match = _SIZE.fullmatch(text)
    size_bytes = 0
    if match and match[3] in _PREFIXES and (match[4] or not match[3]):
        size_bytes = int(_value(match) * _PREFIXES[match[3]])
    if size_bytes <= 0:
        raise UsageError(f"{text!r} is not a size; write it as 80GB (10^9 bytes) or 16GiB (2^30 bytes)")
    return size_bytes


def parse_rate_bytes_s(text: str) -> float:
    """Bytes per second in ``100Gb/s`` (bits) or ``12.5GB/s`` (bytes); ``UsageError`` for anything else."""
    match = _RATE.fullmatch(text)
    if not match or match[3] not in _PREFIXES or not _value(match):
        raise UsageError(
            f"{text!r} is not a rate; write it as 100Gb/s (b: bits) or 12.5GB/s (B: bytes), above zero"
        )
    bits = 1 if match[4] == "B" else BITS_PER_BYTE
    return float(_value(match) * _PREFIXES[match[3]] / bits)


def parse_duration_s(text: str) -> float:
    """Seconds in ``20us``, ``1.5ms``, ``60`` or ``2min``. Raises ``UsageError`` for anything else."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r} is not a duration; write it as 20us, 1.5ms, 60s, 2min or 1h")
    return float(_value(match) * _DURATIONS_S[match[3] or "s"])


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    """``value`` in the largest unit that keeps its rounded figure at 1 or above."""
    for scale, unit in steps:
        figure = float(f"{value / scale:.{digits}g}")
        if figure >= 1.0 or unit == steps[-1][1]:
            return f"{figure:.{digits}g} {unit}" if figure < 10.0**digits else f"{figure:.0f} {unit}"
    raise AssertionError("steps is never empty")


def format_bytes(size_bytes: float, *, digits: int = 3) -> str:
    """``80.5 GB``: decimal units, ``digits`` significant figures; ``parse_bytes`` reads it back."""
    steps = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
    return _scaled(size_bytes, steps, digits)


def format_rate(rate_bytes_s: float, *, digits: int = 3) -> str:
    """``450 GB/s``: bytes per second in decimal units; ``parse_rate_bytes_s`` reads it back."""
    return format_bytes(rate_bytes_s, digits=digits) + "/s"


def format_duration(duration_s: float, *, digits: int = 3) -> str:
    """``1.25 ms``: seconds and below; ``parse_duration_s`` reads it back."""
    steps = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
    return _scaled(duration_s, steps, digits)
