"""Sizes, rates and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.cost_model import (
    format_bytes,
    format_duration,
    format_rate,
    parse_bytes,
    parse_duration_s,
    parse_rate_bytes_s,
)
from autopar.ir.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("16GiB", 16 * 2**30),
        ("80GB", 80 * 10**9),
        ("0.5 GiB", 2**29),
        ("1024", 1024),
        ("3kB", 3000),
        ("1e3MB", 10**9),
    ],
)
def test_a_size_is_decimal_without_i_and_binary_with_it(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "rate_bytes_s"),
    [("32Gb/s", 4e9), ("100Gb/s", 12.5e9), ("12.5GB/s", 12.5e9), ("400Gbit/s", 5e10)],
)
def test_a_small_b_is_a_bit_and_a_large_one_a_byte(text: str, rate_bytes_s: float) -> None:
    assert parse_rate_bytes_s(text) == rate_bytes_s


@pytest.mark.parametrize(
    ("text", "duration_s"), [("20us", 2e-5), ("1.5ms", 1.5e-3), ("60", 60.0), ("2min", 120.0), ("1h", 3600.0)]
)
def test_a_bare_duration_is_seconds(text: str, duration_s: float) -> None:
    assert parse_duration_s(text) == duration_s


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "nan", "inf", "16gb", "16Gb", "16GiB/s", "0", "16i", "1e99999GB"]
)
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "32", "32Gb", "32gb/s", "0Gb/s", "-1Gb/s", "nanGb/s", "32Gb/h"])
def test_a_rate_needs_a_number_above_zero_and_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="not a rate"):
        parse_rate_bytes_s(text)


@pytest.mark.parametrize("text", ["", "s", "-1s", "inf", "5 minutes"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration_s(text)


@given(st.integers(min_value=1, max_value=10**18))
def test_whole_bytes_are_read_back_exactly(size_bytes: int) -> None:
    assert parse_bytes(f"{size_bytes}B") == size_bytes


@given(st.integers(min_value=1, max_value=10**18))
def test_a_formatted_size_is_read_back_within_its_digits(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=5.1e-3)


@given(st.floats(min_value=1.0, max_value=1e16))
def test_a_formatted_rate_is_read_back_within_its_digits(rate_bytes_s: float) -> None:
    assert parse_rate_bytes_s(format_rate(rate_bytes_s)) == pytest.approx(rate_bytes_s, rel=5.1e-3)


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_formatted_duration_is_read_back_within_its_digits(duration_s: float) -> None:
    assert parse_duration_s(format_duration(duration_s)) == pytest.approx(duration_s, rel=5.1e-3)


def test_a_size_just_below_the_next_unit_is_shown_in_it() -> None:
    assert [format_bytes(999_999), format_bytes(999), format_bytes(80e9)] == ["1 MB", "999 B", "80 GB"]
