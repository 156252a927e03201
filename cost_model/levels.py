"""The two levels of links that a collective crosses: inside a node and between nodes.

Where nodes differ, the slowest link of each level stands for all, since a collective waits for its slowest
member.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from autopar.cost_model.cluster import Cluster, NodeGroup
from autopar.cost_model.profile import CostProfile


@dataclass(frozen=True, kw_only=True)
class Level:
    """Bytes/s that payload gets in one direction, one hop, one start, and where the rate comes from."""

    bandwidth_bytes_s: float
    latency_s: float
    base_latency_s: float
    source: str


@functools.lru_cache(maxsize=256)
def intra_level(cluster: Cluster, profile: CostProfile) -> Level:
    """Inside a node; the bandwidth is of one device."""
    return _slowest(_intra(group, profile) for group in cluster.nodes)


@functools.lru_cache(maxsize=256)
def inter_level(cluster: Cluster, profile: CostProfile) -> Level:
    """Between nodes; the bandwidth is of one node, shared by its devices.

    A figure of the cluster's network wins; without one it is the device's ``inter`` link, the bandwidth times
    ``nics_per_node``. Raises ``FileFormatError`` naming the key where neither says it.
    """
    return _slowest(_inter(group, cluster, profile) for group in cluster.nodes)


def _intra(group: NodeGroup, profile: CostProfile) -> Level:
    return _link_level(group.intra or profile.device_link(group.device, "intra"), profile)


def _inter(group: NodeGroup, cluster: Cluster, profile: CostProfile) -> Level:
    network = cluster.network
    if network.bandwidth_bytes_s is not None:
        link_name = profile.device(group.device).inter
        latency_s = network.latency_s
        if latency_s is None:
            link_name = profile.device_link(group.device, "inter")
            latency_s = profile.link_number(link_name, "latency_us") / 1e6
        return Level(
            bandwidth_bytes_s=network.bandwidth_bytes_s,
            latency_s=latency_s,
            base_latency_s=_base_latency_s(link_name, profile),
            source="the cluster's network, per node and direction",
        )
    link_name = profile.device_link(group.device, "inter")
    nics = profile.device_number(group.device, "nics_per_node")
    level = _link_level(link_name, profile)
    return Level(
        bandwidth_bytes_s=level.bandwidth_bytes_s * nics,
        latency_s=level.latency_s if network.latency_s is None else network.latency_s,
        base_latency_s=level.base_latency_s,
        source=f"no rate given: {nics:.0f} x {level.source}, the usual network of {group.device}",
    )


def _link_level(link_name: str, profile: CostProfile) -> Level:
    usable = profile.link(link_name).usable_fraction
    shown = "" if usable is None else f" x usable_fraction {usable:g}"
    bandwidth_bytes_s = profile.link_number(link_name, "bandwidth_gb_s") * 1e9
    return Level(
        bandwidth_bytes_s=bandwidth_bytes_s if usable is None else bandwidth_bytes_s * usable,
        latency_s=profile.link_number(link_name, "latency_us") / 1e6,
        base_latency_s=_base_latency_s(link_name, profile),
        source=f"link {link_name}{shown}",
    )


def _base_latency_s(link_name: str | None, profile: CostProfile) -> float:
    base_us = None if link_name is None else profile.link(link_name).base_latency_us
    return 0.0 if base_us is None else base_us / 1e6


def _slowest(levels: Iterable[Level]) -> Level:
    """The least bandwidth and the most latency of all."""
    every = list(levels)
    slowest = min(every, key=lambda level: level.bandwidth_bytes_s)
    return Level(
        bandwidth_bytes_s=slowest.bandwidth_bytes_s,
        latency_s=max(level.latency_s for level in every),
        base_latency_s=max(level.base_latency_s for level in every),
        source=slowest.source,
    )
