"""Seconds of collectives: known values, monotony, sharing of the network, measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.cost_model import (
    Cluster,
    CollectiveKind,
    CostProfile,
    Group,
    axis_groups,
    collective_lines,
    collective_s,
)
from autopar.ir.errors import UsageError

BUILTIN = CostProfile()
KINDS = get_args(CollectiveKind)
BIG_BYTES = 2**40
NODE = Cluster.parse("1x8xH100-SXM")
IN_NODE = Group(axis="tp", size=8, ranks_per_node=8, nodes=1)


@pytest.mark.parametrize(
    ("kind", "volume"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_gather", 7.0),
        ("all_to_all", 7 / 8),
        ("broadcast", 1.0),
    ],
)
def test_large_payloads_in_a_node_tend_to_volume_over_the_link_rate(kind: str, volume: float) -> None:
    """450 GB/s are 450e9 bytes/s, not 450 x 2^30."""
    seconds = collective_s(kind, BIG_BYTES, IN_NODE, NODE, BUILTIN)
    assert seconds == pytest.approx(volume * BIG_BYTES / 450e9, rel=1e-4)


@pytest.mark.parametrize(("kind", "hops"), [("all_reduce", 14), ("all_gather", 7), ("reduce_scatter", 7)])
def test_small_payloads_in_a_node_cost_one_start_and_the_hops_of_a_ring(kind: str, hops: int) -> None:
    assert collective_s(kind, 0, IN_NODE, NODE, BUILTIN) == pytest.approx(6.6e-6 + hops * 0.6e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_costs_nothing(kind: str) -> None:
    assert (
        collective_s(kind, BIG_BYTES, Group(axis="x", size=1, ranks_per_node=1, nodes=1), NODE, BUILTIN)
        == 0.0
    )


@given(
    kind=st.sampled_from(KINDS),
    spread=st.sampled_from([(8, 1), (1, 4), (2, 4), (8, 4)]),
    sizes_bytes=st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)),
)
def test_more_bytes_never_cost_less(kind: str, spread: tuple[int, int], sizes_bytes: tuple[int, int]) -> None:
    group = Group(axis="x", size=spread[0] * spread[1], ranks_per_node=spread[0], nodes=spread[1])
    cluster = Cluster.parse("4x8xV100-SXM2-32GB@32Gb/s")
    low, high = (collective_s(kind, size, group, cluster, BUILTIN) for size in sorted(sizes_bytes))
    assert 0.0 < low <= high


@pytest.mark.parametrize("payload_bytes", [0, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("ranks_per_node", [1, 2, 8])
def test_an_all_reduce_costs_no_more_than_its_two_halves(payload_bytes: int, ranks_per_node: int) -> None:
    group = Group(axis="x", size=4 * ranks_per_node, ranks_per_node=ranks_per_node, nodes=4)
    cluster = Cluster.parse("4x8xH100-SXM")
    halves_s = collective_s("reduce_scatter", payload_bytes, group, cluster, BUILTIN)
    halves_s += collective_s("all_gather", payload_bytes // group.size, group, cluster, BUILTIN)
    assert collective_s("all_reduce", payload_bytes, group, cluster, BUILTIN) <= halves_s * (1 + 1e-9)


def test_groups_that_share_a_node_share_its_network() -> None:
    """Data parallel over 2 nodes with tp=8 inside: 8 groups at once, each on an eighth of the node's rate."""
    cluster = Cluster.parse("2x8xV100-SXM2-32GB@32Gb/s")
    group = axis_groups([("dp", 2), ("tp", 8)], cluster)["dp"]
    seconds = collective_s("all_reduce", BIG_BYTES, group, cluster, BUILTIN)
    assert seconds == pytest.approx(2 * (1 / 2) * BIG_BYTES / (4e9 / 8), rel=1e-4)


def test_one_group_over_whole_nodes_has_their_network_to_itself() -> None:
    """Between nodes passes 2 (N-1)/N of the payload, inside them 2 (m-1)/m."""
    cluster = Cluster.parse("2x8xV100-SXM2-32GB@32Gb/s")
    group = axis_groups([("dp", 16)], cluster)["dp"]
    seconds = collective_s("all_reduce", BIG_BYTES, group, cluster, BUILTIN)
    hierarchical_s = 2 * (7 / 8) * BIG_BYTES / 150e9 + 2 * (1 / 2) * BIG_BYTES / 4e9
    assert seconds == pytest.approx(min(hierarchical_s, 2 * (15 / 16) * BIG_BYTES / 4e9), rel=1e-4)


def test_the_cheaper_of_ring_and_hierarchy_counts() -> None:
    cluster = Cluster.parse("8x8xH100-SXM")
    group = axis_groups([("dp", 64)], cluster)["dp"]
    ring, hierarchical = collective_lines("all_reduce", group, cluster, BUILTIN)
    assert collective_s("all_reduce", 0, group, cluster, BUILTIN) == hierarchical.start_s < ring.start_s
    large_s = collective_s("all_reduce", BIG_BYTES, group, cluster, BUILTIN)
    assert large_s == ring.start_s + ring.s_per_byte * BIG_BYTES


def test_without_a_rate_the_network_is_the_devices_own_times_its_cards_and_usable_part() -> None:
    cluster = Cluster.parse("2x8xH100-SXM")
    group = axis_groups([("dp", 2), ("tp", 8)], cluster)["dp"]
    seconds = collective_s("all_reduce", BIG_BYTES, group, cluster, BUILTIN)
    assert seconds == pytest.approx(BIG_BYTES / (8 * 50e9 * 0.85 / 8), rel=1e-4)


def test_the_slowest_link_of_a_mixed_cluster_counts(write: Callable[[str], Path]) -> None:
    text = '[[nodes]]\ncount = 1\ngpus = 2\ndevice = "V100-SXM2-32GB"\n'
    mixed = Cluster.load(write(text + text.replace("V100-SXM2-32GB", "P100-SXM2-16GB")))
    group = axis_groups([("dp", 2), ("tp", 2)], mixed)["tp"]
    assert collective_s("broadcast", BIG_BYTES, group, mixed, BUILTIN) == pytest.approx(
        BIG_BYTES / 80e9, rel=1e-4
    )


@pytest.mark.parametrize(
    ("device", "measured"),
    [("A100-SXM-80GB", "A100x8_all_reduce_16GiB"), ("H200-SXM", "H200x8_ring"), ("B200-SXM", "B200x8_ring")],
)
def test_a_large_all_reduce_is_within_forty_percent_of_its_measured_rate(device: str, measured: str) -> None:
    """The link's datasheet rate is optimistic: 235 of 300, 364 of 450, 678 of 900 GB/s were measured."""
    seconds = collective_s("all_reduce", 2**34, IN_NODE, Cluster.parse(f"1x8x{device}"), BUILTIN)
    bus_bytes_s = 2 * (7 / 8) * 2**34 / seconds
    rates_gb_s = BUILTIN.data.nccl.measured_busbw_gb_s[measured]
    assert max(rates_gb_s) * 1e9 < bus_bytes_s < 1.4 * min(rates_gb_s) * 1e9


def test_an_unknown_collective_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown collective 'allreduce'; expected one of all_reduce"):
        collective_s("allreduce", 1, IN_NODE, NODE, BUILTIN)
