"""The shorthand and the file of a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autopar.cost_model import Cluster, Network, NodeGroup
from autopar.ir.errors import FileFormatError, UsageError

MIXED = """\
[[nodes]]
count = 1
gpus = 8
device = "V100-SXM2-32GB"
intra = "nvlink2"
[[nodes]]
count = 2
gpus = 8
device = "P100-SXM2-16GB"
[network]
bandwidth_gbit_s = 32
latency_us = 20
"""


def test_the_shorthand_is_nodes_by_gpus_by_device() -> None:
    cluster = Cluster.parse("8x4xH100-SXM")
    assert cluster.nodes == (NodeGroup(count=8, gpus=4, device="H100-SXM"),)
    assert cluster.network == Network()
    assert (cluster.world_size, cluster.num_nodes, cluster.gpus_per_node) == (32, 8, 4)


@pytest.mark.parametrize(("rate", "rate_bytes_s"), [("32Gb/s", 4e9), ("4GB/s", 4e9), ("100Gb/s", 12.5e9)])
def test_the_rate_of_the_shorthand_is_exact(rate: str, rate_bytes_s: float) -> None:
    assert Cluster.parse(f"2x8xV100-SXM2-32GB@{rate}").network.bandwidth_bytes_s == rate_bytes_s


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8xH100-SXM",
        "8x8",
        "x8xH100",
        "8x8x",
        "-1x8xH100",
        "0x8xH100",
        "8x0xH100",
        "8x8xH100@",
        "8x8xH100@32",
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Cluster.parse(text)


def test_a_mixed_cluster_comes_from_a_file(write: Callable[[str], Path]) -> None:
    cluster = Cluster.load(write(MIXED))
    assert cluster.devices == ("V100-SXM2-32GB", "P100-SXM2-16GB")
    assert cluster.network == Network(bandwidth_bytes_s=4e9, latency_s=2e-5)
    assert not cluster.is_homogeneous
    assert [cluster.device_of_rank(rank) for rank in (0, 7, 8, 23)] == [
        cluster.devices[i] for i in (0, 0, 1, 1)
    ]


def test_a_cluster_is_plain_data_in_a_plan(write: Callable[[str], Path]) -> None:
    for cluster in (Cluster.load(write(MIXED)), Cluster.parse("2x8xCPU@10Gb/s"), Cluster.parse("1x1xCPU")):
        assert Cluster.from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster


def test_a_bandwidth_in_gigabytes_is_eight_times_one_in_gigabits(write: Callable[[str], Path]) -> None:
    file = '[[nodes]]\ncount = 2\ngpus = 1\ndevice = "CPU"\n[network]\nbandwidth_gb_s = 32'
    assert Cluster.load(write(file)).network.bandwidth_bytes_s == 32e9


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "expected"),
    [
        ("gpus = 8", "gpu = 8", 3, "nodes[0].gpu", "unknown key; did you mean gpus"),
        ("count = 2", "count = 0", 7, "nodes[1].count", "is 0, expected a number greater than 0"),
        ("count = 2", "count = 2.0", 7, "nodes[1].count", "expected a valid integer"),
        ("count = 2\n", "", 6, "nodes[1].count", "is missing"),
        ("gbit_s = 32", "gbit_s = -32", 11, "network.bandwidth_gbit_s", "greater than 0"),
        ("gbit_s = 32", "gbit_s = nan", 11, "network.bandwidth_gbit_s", "finite number"),
        ("gbit_s = 32", "gbit_s = inf", 11, "network.bandwidth_gbit_s", "finite number"),
        ("gbit_s = 32", 'gbit_s = "32Gb/s"', 11, "network.bandwidth_gbit_s", "valid number"),
        ("bandwidth_gbit_s", "bandwidth_gbps", 11, "network.bandwidth_gbps", "unknown key"),
        (
            "latency_us = 20",
            "bandwidth_gb_s = 4",
            10,
            "network",
            "has both bandwidth_gbit_s and bandwidth_gb_s",
        ),
    ],
)
def test_a_mistake_names_its_key_and_its_line(
    write: Callable[[str], Path], old: str, new: str, line: int, key: str, expected: str
) -> None:
    path = write(MIXED.replace(old, new, 1))
    with pytest.raises(FileFormatError) as caught:
        Cluster.load(str(path))
    assert str(caught.value).startswith(f"{path}, line {line}: {key} ")
    assert expected in str(caught.value)


def test_a_file_without_nodes_is_refused(write: Callable[[str], Path]) -> None:
    with pytest.raises(FileFormatError, match="nodes is missing"):
        Cluster.load(write("[network]"))


def test_bad_plain_data_is_refused_with_its_key() -> None:
    data = Cluster.parse("1x8xCPU").to_dict() | {"network": {"bandwidth_bytes_s": 0.0}}
    with pytest.raises(FileFormatError, match=r"network\.bandwidth_bytes_s is 0\.0"):
        Cluster.from_dict(data)
