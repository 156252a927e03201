"""What a cluster is taken to be, and where each number came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autopar.cost_model import Cluster, ClusterRow, CostProfile, describe
from autopar.ir.errors import UsageError

BETWEEN = "bandwidth between nodes, per node and direction"


def rows(cluster: Cluster, profile: CostProfile) -> dict[str, ClusterRow]:
    """The rows by what they are of."""
    return {row.what: row for row in describe(cluster, profile)}


def test_without_a_rate_the_table_says_that_the_network_is_the_usual_one(builtin: CostProfile) -> None:
    row = rows(Cluster.parse("2x8xH100-SXM"), builtin)[BETWEEN]
    assert row.value == "340 GB/s"
    assert row.source.startswith("no rate given: 8 x link ib_ndr x usable_fraction 0.85")


def test_a_given_rate_is_shown_as_the_clusters_own(builtin: CostProfile) -> None:
    row = rows(Cluster.parse("2x8xH100-SXM@100Gb/s"), builtin)[BETWEEN]
    assert (row.value, row.source) == ("12.5 GB/s", "the cluster's network, per node and direction")


def test_one_node_has_no_network(builtin: CostProfile) -> None:
    assert BETWEEN not in rows(Cluster.parse("1x8xH100-SXM"), builtin)


def test_a_number_of_a_users_file_names_the_file(write: Callable[[str], Path]) -> None:
    path = write("[device.H100-SXM]\nmemory_tb_s = 3")
    row = rows(Cluster.parse("1x8xH100-SXM"), CostProfile(path))["H100-SXM memory bandwidth"]
    assert row.value == "3 TB/s"
    assert row.source.startswith(f"{path}, line 2")


def test_every_shipped_device_can_be_described(builtin: CostProfile) -> None:
    for device in builtin.data.device:
        assert describe(Cluster.parse(f"2x8x{device}"), builtin)


def test_an_unknown_device_names_the_nearest(builtin: CostProfile) -> None:
    with pytest.raises(UsageError, match="did you mean H100-SXM"):
        describe(Cluster.parse("2x8xH100"), builtin)
