"""What was measured becomes a profile that prices what was measured as it was measured."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from autopar.calibrating.document import Document, document, rows, toml
from autopar.calibrating.measure import Measured
from autopar.calibrating.probes import MOVED
from autopar.cost_model import Cluster, CostProfile, Group, OpCost, collective_s, compute_s
from autopar.cost_model.collectives import inside_volume, rounds
from autopar.ir.optable import TABLE

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GB_S, HOP_US = 3.0, 40.0
SIZES = (2**12, 2**16, 2**20, 2**24)
GROUP = Group(axis="dp", size=4, ranks_per_node=4, nodes=1)


def measured(device: str = "CPU", processes: int = 4) -> Measured:
    """Of links with ``GB_S`` and ``HOP_US``."""
    n = processes
    collectives = {
        kind: {
            float(size): rounds(kind) * (n - 1) * HOP_US * 1e-6 + inside_volume(kind, n) * size / (GB_S * 1e9)
            for size in SIZES
        }
        for kind in KINDS
    }  # fmt: skip
    return Measured(
        device=device, processes=processes, memory_bytes=8 * 2**30, dtype="f32", copy_bytes_s=20e9,
        mixed_elements_s=3e9, flops_s={"f32": {1e6: 2e10, 1e9: 8e10}, "bf16": {1e6: 1e11, 1e9: 4e11}},
        attention_s={1e8: 2.5e-3, 1e10: 5e-2}, seconds={"aten.gelu.default": {1e6: 1e-4, 1e8: 2e-2}},
        collective_s=collectives if processes > 1 else {},
    )  # fmt: skip


def tables(found: Measured, kind: str = "cpu", *, known: bool = True) -> Document:
    date = datetime.date(2026, 1, 2).isoformat()
    return document(found, kind, found.device, known=known, source='a "test"', date=date)


@pytest.fixture
def profile(tmp_path: Path) -> CostProfile:
    (tmp_path / "mine.toml").write_text(toml(tables(measured())))
    return CostProfile(tmp_path / "mine.toml")


def op(target: str, op_class: str, flops: float = 0, size: float = 0) -> OpCost:
    return OpCost(target=target, op_class=op_class, dtype="f32", flops=int(flops), bytes=int(size))


@pytest.mark.parametrize(("flops", "rate"), [(1e6, 2e10), (1e9, 8e10), (1e12, 8e10)])
def test_products_take_what_was_measured(profile: CostProfile, flops: float, rate: float) -> None:
    cost = compute_s(op("aten.linear.default", "matmul", flops), "CPU", profile)
    assert cost == pytest.approx(flops / rate, rel=1e-3)


def test_attention_may_be_faster_than_any_product(profile: CostProfile) -> None:
    """Its causal half is counted whole."""
    attention = "aten.scaled_dot_product_attention.default"
    assert compute_s(op(attention, "attention", 1e8), "CPU", profile) == pytest.approx(2.5e-3)
    assert compute_s(op(attention, "attention", 1e10), "CPU", profile) == pytest.approx(5e-2)


def test_another_element_type_has_its_own_peak_and_no_curve_of_others(profile: CostProfile) -> None:
    product = OpCost(target="aten.linear.default", op_class="matmul", dtype="bf16", flops=10**6, bytes=0)
    assert compute_s(product, "CPU", profile) == pytest.approx(1e6 / 4e11)
    gelu = OpCost(target="aten.gelu.default", op_class="pointwise", dtype="bf16", flops=0, bytes=10**9)
    assert compute_s(gelu, "CPU", profile) == pytest.approx(1e9 / 20e9)


def test_operations_take_what_was_measured(profile: CostProfile) -> None:
    assert compute_s(op("aten.gelu.default", "pointwise", size=1e8), "CPU", profile) == pytest.approx(2e-2)
    assert compute_s(op("aten.sin.default", "pointwise", size=1e9), "CPU", profile) == pytest.approx(1e9 / 20e9)


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_take_what_was_measured(profile: CostProfile, kind: str) -> None:
    cluster = Cluster.load("1x4xCPU")
    for size, seconds in measured().collective_s[kind].items():
        assert collective_s(kind, int(size), GROUP, cluster, profile) == pytest.approx(seconds, rel=2e-3)


def test_links_are_never_below_nothing(tmp_path: Path) -> None:
    """Where large payloads are slower than small ones foretell, the best line through all starts below zero."""
    found = measured()
    for points in found.collective_s.values():
        points.update({size: size**1.2 * 1e-9 for size in points})
    link = tables(found)["link"]["measured-CPU"]
    assert link["latency_us"] > 0
    assert link["bandwidth_gb_s"] > 0
    (tmp_path / "mine.toml").write_text(toml(tables(found)))
    CostProfile(tmp_path / "mine.toml")


def test_a_profile_of_one_process_has_the_built_in_links(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(toml(tables(measured(processes=1))))
    assert CostProfile(tmp_path / "one.toml").device("CPU").intra == CostProfile().device("CPU").intra


def test_a_device_that_nobody_knows_is_complete(tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text(toml(tables(measured("RTX-9"), "cuda", known=False)))
    found = CostProfile(tmp_path / "new.toml")
    assert found.device("RTX-9").memory_mib == 8 * 1024
    assert collective_s("all_reduce", 2**20, GROUP, Cluster.load("1x4xRTX-9"), found) > 0
    assert compute_s(op("aten.linear.default", "matmul", 1e9), "RTX-9", found) == pytest.approx(1e9 / 8e10, rel=1e-3)


def test_figures_stand_beside_the_built_in_ones() -> None:
    before = CostProfile().data.model_dump(mode="json", exclude_none=True)
    found = {key: (here, there) for key, here, there in rows(tables(measured()), before)}
    assert found["device.CPU.fp32_tflops"] == ("0.08", "0.16")
    assert found["link.measured-CPU.bandwidth_gb_s"] == ("3", "–")


def test_all_that_is_measured_is_in_the_table_of_operations() -> None:
    assert set(MOVED) <= set(TABLE)
