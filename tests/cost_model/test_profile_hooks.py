"""``CostProfile`` in Python: hooks, names, hashes, and numbers that are not there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from autopar.cost_model import Cluster, CostProfile, Group, OpCost, collective_s, compute_s, efficiency_source
from autopar.ir.errors import FileFormatError, UsageError

LINEAR = OpCost(target="aten.linear.default", op_class="matmul", dtype="bf16", flops=10**12, bytes=10**6)
RELU = OpCost(target="aten.relu.default", op_class="elementwise", dtype="bf16", flops=10**3, bytes=10**6)
GROUP = Group(axis="tp", size=8, ranks_per_node=8, nodes=1)
CLUSTER = Cluster.parse("1x8xH100-SXM")


class LinearIsOneSecond(CostProfile):
    """Prices linear only; does not call ``super().__init__``."""

    def __init__(self) -> None:
        pass

    def compute_s(self, op: OpCost, device: str) -> float | None:
        return 1.0 if op.target == "aten.linear.default" else None


class Returns(CostProfile):
    """Answers every question with one value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def compute_s(self, op: OpCost, device: str) -> float | None:
        return self.value

    def collective_s(self, kind: str, bytes: int, group: Group) -> float | None:
        return self.value * bytes


def test_a_hook_wins_and_none_keeps_the_builtin_figure(builtin: CostProfile) -> None:
    profile = LinearIsOneSecond()
    assert compute_s(LINEAR, "H100-SXM", profile) == 1.0
    assert compute_s(RELU, "H100-SXM", profile) == compute_s(RELU, "H100-SXM", builtin)
    assert collective_s("all_reduce", 9, GROUP, CLUSTER, profile) == collective_s(
        "all_reduce", 9, GROUP, CLUSTER, builtin
    )


def test_what_a_hook_raises_is_told_as_its_own() -> None:
    class Fails(CostProfile):
        def compute_s(self, op: OpCost, device: str) -> float | None:
            raise KeyError(op.target)

    with pytest.raises(UsageError, match=r"Fails.compute_s failed for aten.linear.default on H100-SXM: KeyError"):
        compute_s(LINEAR, "H100-SXM", Fails())


def test_a_hook_prices_collectives() -> None:
    assert collective_s("all_gather", 6, GROUP, CLUSTER, Returns(0.5)) == 3.0


def test_the_source_of_a_price_is_the_hook_only_where_it_answers() -> None:
    profile = LinearIsOneSecond()
    assert efficiency_source(LINEAR, "H100-SXM", profile) == "hook"
    assert efficiency_source(RELU, "H100-SXM", profile) == "peak"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e30, "1", True])
def test_a_hook_that_returns_no_seconds_is_named(value: float) -> None:
    with pytest.raises(
        UsageError, match=r"Returns.compute_s returned .* for aten.linear.default on H100-SXM"
    ):
        compute_s(LINEAR, "H100-SXM", Returns(value))


def test_the_hash_of_a_python_profile_covers_its_class(builtin: CostProfile) -> None:
    assert Returns(1.0).sha256 == Returns(2.0).sha256
    assert len({Returns(1.0).sha256, LinearIsOneSecond().sha256, builtin.sha256}) == 3


def test_the_name_is_the_class_or_the_file_or_builtin(
    write: Callable[[str], Path], builtin: CostProfile
) -> None:
    assert [Returns(1.0).name, CostProfile(write("")).name, builtin.name] == ["Returns", "mine", "builtin"]


def test_a_missing_peak_is_an_error_that_names_it(builtin: CostProfile) -> None:
    with pytest.raises(
        FileFormatError, match=r"^device\.V100-SXM2-32GB has no bf16_tflops; add it under"
    ) as caught:
        compute_s(LINEAR, "V100-SXM2-32GB", builtin)
    assert caught.value.details["key"] == "device.V100-SXM2-32GB.bf16_tflops"


def test_a_link_without_latency_is_an_error_that_names_it(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write('[device.H100-SXM]\nintra = "mine"\n[link.mine]\nbandwidth_gb_s = 1'))
    with pytest.raises(FileFormatError, match=r"^link\.mine has no latency_us; add it under"):
        collective_s("all_reduce", 9, GROUP, CLUSTER, profile)


def test_a_device_without_a_network_is_an_error_that_names_the_key(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write('[device.X]\nintra = "nvlink4"'))
    group = Group(axis="dp", size=2, ranks_per_node=1, nodes=2)
    with pytest.raises(FileFormatError, match=r"^device\.X has no inter; add it"):
        collective_s("all_reduce", 9, group, Cluster.parse("2x1xX"), profile)


def test_an_unknown_device_is_a_usage_error_with_the_nearest_names(builtin: CostProfile) -> None:
    with pytest.raises(UsageError, match=r"no device 'H100-SMX'; did you mean H100-SXM"):
        compute_s(LINEAR, "H100-SMX", builtin)
