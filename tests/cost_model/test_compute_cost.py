"""Seconds of an op: the roofline, its efficiency, and measured seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.cost_model import (
    Cluster,
    CostProfile,
    OpCost,
    compute_s,
    efficiency_source,
    efficiency_sources,
    overlap_fraction,
    slowest_compute_s,
)
from autopar.cost_model.curves import LogCurve
from autopar.ir.errors import UsageError

H100 = "H100-SXM"


def op(*, flops: int = 0, bytes: int = 0, dtype: str = "bf16", op_class: str = "matmul") -> OpCost:
    """One op of the given size."""
    return OpCost(target=f"aten.{op_class}.default", op_class=op_class, dtype=dtype, flops=flops, bytes=bytes)


def test_a_matmul_without_a_curve_runs_at_the_measured_rate(builtin: CostProfile) -> None:
    assert compute_s(op(flops=10**15), H100, builtin) == pytest.approx(1e15 / 794.5e12)


def test_another_class_without_a_curve_runs_at_peak(builtin: CostProfile) -> None:
    assert compute_s(op(flops=10**15, op_class="conv"), H100, builtin) == pytest.approx(1e15 / 989e12)


def test_terabytes_are_decimal(builtin: CostProfile) -> None:
    assert compute_s(op(bytes=3_350_000_000_000), H100, builtin) == pytest.approx(1.0, rel=1e-12)


def test_a_measured_copy_rate_wins_over_the_datasheet(builtin: CostProfile) -> None:
    assert compute_s(op(bytes=4_300_000_000_000), "H200-SXM", builtin) == pytest.approx(1.0, rel=1e-12)


def test_the_longer_of_arithmetic_and_memory_counts(builtin: CostProfile) -> None:
    flops_s = compute_s(op(flops=10**12), H100, builtin)
    bytes_s = compute_s(op(bytes=10**10), H100, builtin)
    assert compute_s(op(flops=10**12, bytes=10**10), H100, builtin) == max(flops_s, bytes_s)


@pytest.mark.parametrize(("dtype", "tflops"), [("f32", 67), ("f16", 989), ("f8e4m3", 1979)])
def test_each_element_type_has_its_own_peak(builtin: CostProfile, dtype: str, tflops: float) -> None:
    seconds = compute_s(op(flops=10**15, dtype=dtype, op_class="conv"), H100, builtin)
    assert seconds == pytest.approx(1e15 / (tflops * 1e12))


def test_float32_runs_as_tf32_only_where_the_profile_says_so(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write(f"[device.{H100}]\nuse_tf32 = true"))
    seconds = compute_s(op(flops=10**15, dtype="f32", op_class="conv"), H100, profile)
    assert seconds == pytest.approx(1e15 / 494.5e12)


@pytest.mark.parametrize("dtype", ["i64", "bool"])
def test_integers_are_priced_by_bytes_alone(builtin: CostProfile, dtype: str) -> None:
    seconds = compute_s(op(flops=10**18, bytes=3350, dtype=dtype), H100, builtin)
    assert seconds == pytest.approx(1e-9)
    assert efficiency_source(op(dtype=dtype), H100, builtin) == "bytes_only"


def test_an_unknown_element_type_is_a_usage_error(builtin: CostProfile) -> None:
    with pytest.raises(UsageError, match="unknown element type 'float32'"):
        compute_s(op(flops=1, dtype="float32"), H100, builtin)


CURVE = "[efficiency.matmul]\nflops = [1e8, 1e10, 1e12]\nfraction = [0.2, 0.6, 0.8]\n"


@pytest.mark.parametrize(
    ("flops", "fraction"),
    [(10**6, 0.2), (10**8, 0.2), (10**9, 0.4), (10**11, 0.7), (10**12, 0.8), (10**15, 0.8)],
)
def test_a_curve_is_interpolated_in_log_flops_and_constant_outside(
    write: Callable[[str], Path], flops: int, fraction: float
) -> None:
    profile = CostProfile(write(CURVE))
    assert compute_s(op(flops=flops), H100, profile) == pytest.approx(flops / (989e12 * fraction))


def test_a_curve_for_one_device_leaves_the_others_alone(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write(CURVE + 'device = "CPU"'))
    assert efficiency_source(op(dtype="f32"), "CPU", profile) == "curve"
    assert efficiency_source(op(), H100, profile) == "measured_rate"


MEASURED = '[op."aten.matmul.default"]\nflops = [1e6, 1e8]\nseconds = [1e-5, 1e-3]\n'


@pytest.mark.parametrize(
    ("flops", "seconds"), [(1, 1e-5), (10**6, 1e-5), (10**7, 1e-4), (10**8, 1e-3), (10**9, 1e-2)]
)
def test_measured_seconds_win_and_grow_in_proportion_past_the_end(
    write: Callable[[str], Path], flops: int, seconds: float
) -> None:
    profile = CostProfile(write(MEASURED + CURVE))
    assert compute_s(op(flops=flops, bytes=10**12), H100, profile) == pytest.approx(seconds)


def test_seconds_measured_by_bytes_ignore_flops(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write(MEASURED.replace("flops", "bytes")))
    assert compute_s(op(flops=10**15, bytes=10**7), H100, profile) == pytest.approx(1e-4)


def test_an_empty_op_table_measures_nothing(write: Callable[[str], Path], builtin: CostProfile) -> None:
    profile = CostProfile(write('[op."aten.matmul.default"]'))
    assert compute_s(op(flops=10**9), H100, profile) == compute_s(op(flops=10**9), H100, builtin)


def test_a_plan_can_list_how_each_class_was_priced(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write('[op."aten.conv.default"]\nflops = [1]\nseconds = [1]'))
    ops = [op(), op(dtype="i64"), op(op_class="conv"), op(op_class="softmax")]
    assert efficiency_sources(ops, H100, profile) == {
        "conv": ("measured_seconds",),
        "matmul": ("bytes_only", "measured_rate"),
        "softmax": ("peak",),
    }


@given(st.lists(st.integers(0, 10**16), min_size=2, max_size=2), st.integers(0, 10**12))
def test_more_flops_never_cost_less_without_a_curve(flops: list[int], size_bytes: int) -> None:
    low, high = (compute_s(op(flops=count, bytes=size_bytes), H100, PROFILE) for count in sorted(flops))
    assert low <= high


PROFILE = CostProfile()


@given(st.floats(1e-3, 1e20))
def test_a_curve_stays_between_its_least_and_its_most(size: float) -> None:
    assert 0.1 <= LogCurve([1e3, 1e6, 1e9], [0.1, 0.9, 0.5])(size) <= 0.9 + 1e-12


def test_a_mixed_cluster_waits_for_its_slowest_device(builtin: CostProfile) -> None:
    fast, slow = Cluster.parse("1x8xH100-SXM"), Cluster.parse("1x8xV100-SXM2-32GB")
    mixed = Cluster(nodes=fast.nodes + slow.nodes)
    work = op(flops=10**12, dtype="f16", op_class="conv")
    assert slowest_compute_s(work, mixed, builtin) == compute_s(work, "V100-SXM2-32GB", builtin)


def test_communication_hides_behind_a_gpu_and_not_behind_a_cpu(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write("[device.MyChip]\nfp32_tflops = 1\n[overlap]\nfraction = 0.25"))
    fractions = [overlap_fraction(device, profile) for device in (H100, "CPU", "MyChip")]
    assert fractions == [1.0, 0.0, 0.25]
