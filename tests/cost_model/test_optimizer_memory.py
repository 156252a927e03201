"""Optimizer state and device memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autopar.cost_model import (
    Cluster,
    CostProfile,
    default_budget_bytes,
    device_memory_bytes,
    optimizer_state_bytes,
)
from autopar.ir.errors import FileFormatError, UsageError


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"),
    [
        ("adamw", 2 * 4 * 48 + 4),
        ("adam", 2 * 4 * 48 + 4),
        ("sgd", 0),
        ("sgd_momentum", 4 * 48),
        ("adafactor", 4 * 2 * (4 + 6) + 4),
    ],
)
def test_each_optimizer_keeps_its_own_states(builtin: CostProfile, optimizer: str, state_bytes: int) -> None:
    assert optimizer_state_bytes(optimizer, (2, 4, 6), "f32", builtin) == state_bytes


def test_a_factored_optimizer_keeps_a_vector_whole(builtin: CostProfile) -> None:
    assert optimizer_state_bytes("adafactor", (10,), "f32", builtin) == 4 * 10 + 4


def test_states_have_the_parameters_type_unless_the_profile_says_otherwise(
    write: Callable[[str], Path], builtin: CostProfile
) -> None:
    profile = CostProfile(write('[optimizer.adamw]\nstate_dtype = "f32"'))
    assert optimizer_state_bytes("adamw", (10,), "bf16", builtin) == 2 * 2 * 10 + 4
    assert optimizer_state_bytes("adamw", (10,), "bf16", profile) == 2 * 4 * 10 + 4


def test_an_optimizer_of_the_user_needs_every_key(write: Callable[[str], Path]) -> None:
    profile = CostProfile(write("[optimizer.lion]\nstates = 1"))
    with pytest.raises(FileFormatError, match=r"^optimizer\.lion has no factored; add it"):
        optimizer_state_bytes("lion", (10,), "f32", profile)


def test_an_unknown_optimizer_is_a_usage_error_with_the_nearest_name(builtin: CostProfile) -> None:
    with pytest.raises(UsageError, match=r"no optimizer 'adamW'; did you mean adam or adamw"):
        optimizer_state_bytes("adamW", (10,), "f32", builtin)


@pytest.mark.parametrize(
    ("device", "memory_bytes"), [("H100-SXM", 81559 * 2**20), ("MI300X", 192 * 10**9), ("CPU", 12 * 10**9)]
)
def test_what_the_driver_reports_wins_over_the_makers_figure(
    builtin: CostProfile, device: str, memory_bytes: int
) -> None:
    assert device_memory_bytes(Cluster.parse(f"1x8x{device}"), builtin) == memory_bytes


def test_the_smallest_device_of_a_mixed_cluster_counts(builtin: CostProfile) -> None:
    large, small = Cluster.parse("1x8xMI300X"), Cluster.parse("1x8xP100-SXM2-16GB")
    assert device_memory_bytes(Cluster(nodes=large.nodes + small.nodes), builtin) == 16 * 10**9


def test_the_budget_is_the_profiles_fraction_of_the_memory(builtin: CostProfile) -> None:
    assert default_budget_bytes(Cluster.parse("1x8xMI300X"), builtin) == int(0.95 * 192e9)
