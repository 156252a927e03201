"""The cluster file, and a cluster as plain data in a plan: strict schemas of both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from autopar.cost_model.profile_schema import Count, Positive
from autopar.cost_model.toml_file import StrictTable, TomlFile, read_toml
from autopar.cost_model.units import BITS_PER_BYTE

Name = Annotated[str, Field(min_length=1)]


class NodesTable(StrictTable):
    """``[[nodes]]``: equal nodes."""

    count: Count
    gpus: Count
    device: Name
    intra: Name | None = None


class NetworkTable(StrictTable):
    """``[network]``: between nodes, per node and direction."""

    bandwidth_gbit_s: Positive | None = None
    bandwidth_gb_s: Positive | None = None
    latency_us: Positive | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if self.bandwidth_gbit_s is not None and self.bandwidth_gb_s is not None:
            raise ValueError("has both bandwidth_gbit_s and bandwidth_gb_s, expected one of them")
        return self

    def si(self) -> tuple[float | None, float | None]:
        """Bytes per second and seconds."""
        rate_bytes_s: float | None = None
        if self.bandwidth_gbit_s is not None:
            rate_bytes_s = self.bandwidth_gbit_s * 1e9 / BITS_PER_BYTE
        elif self.bandwidth_gb_s is not None:
            rate_bytes_s = self.bandwidth_gb_s * 1e9
        return rate_bytes_s, None if self.latency_us is None else self.latency_us / 1e6


class ClusterFile(StrictTable):
    """A whole cluster file."""

    nodes: Annotated[list[NodesTable], Field(min_length=1)]
    network: NetworkTable = NetworkTable()


class PlainNetwork(StrictTable):
    """The network in a plan, in SI units."""

    bandwidth_bytes_s: Positive | None = None
    latency_s: Positive | None = None


class PlainCluster(StrictTable):
    """A cluster in a plan."""

    nodes: Annotated[list[NodesTable], Field(min_length=1)]
    network: PlainNetwork


def read_cluster_file(path: Path) -> ClusterFile:
    """The checked tables of a file; ``FileFormatError`` names the key and the line of the first mistake."""
    return read_toml(path).check(ClusterFile)


def check_plain(data: Mapping[str, object]) -> PlainCluster:
    """Plain data from a plan; ``FileFormatError`` names the first wrong key."""
    return TomlFile(name="cluster", data=dict(data), lines={}).check(PlainCluster)
