"""What a cluster is taken to be, as rows of a table: each number with the place it came from."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cost_model.cluster import Cluster
from autopar.cost_model.levels import Level, inter_level, intra_level
from autopar.cost_model.memory import default_budget_bytes, device_memory_bytes
from autopar.cost_model.profile import CostProfile
from autopar.cost_model.units import format_bytes, format_duration, format_rate

_PEAKS = (
    "fp8_tflops",
    "bf16_tflops",
    "fp16_tflops",
    "tf32_tflops",
    "fp32_tflops",
    "fp64_tflops",
    "measured_bf16_tflops",
)


@dataclass(frozen=True, kw_only=True)
class ClusterRow:
    """One line: what it is, the figure with its unit, and where the figure came from."""

    what: str
    value: str
    source: str


def describe(cluster: Cluster, profile: CostProfile) -> tuple[ClusterRow, ...]:
    """The rows of ``autopar cluster show``. Raises as pricing does where a number is missing."""
    rows = [
        ClusterRow(what="cluster", value=str(cluster), source="given"),
        ClusterRow(what="devices", value=str(cluster.world_size), source=f"{cluster.num_nodes} nodes"),
        ClusterRow(what="cost profile", value=profile.name, source=f"sha256 {profile.sha256[:12]}"),
    ]
    for device in cluster.devices:
        rows += _device_rows(device, profile)
    smallest = "the smallest device's" if len(cluster.devices) > 1 else "the device's"
    budget_bytes = default_budget_bytes(cluster, profile)
    rows.append(
        ClusterRow(
            what="memory per device",
            value=format_bytes(device_memory_bytes(cluster, profile), digits=4),
            source=f"{smallest} memory; {format_bytes(budget_bytes, digits=4)} of it may be used",
        )
    )
    slowest = "" if cluster.is_homogeneous else "; the slowest of the cluster"
    if cluster.gpus_per_node > 1:
        rows += _level_rows("inside a node, per device", intra_level(cluster, profile), slowest)
    if cluster.num_nodes > 1:
        level = inter_level(cluster, profile)
        given = cluster.network.latency_s is not None
        rows += _level_rows("between nodes, per node", level, slowest, latency_given=given)
    return tuple(rows)


def _device_rows(device: str, profile: CostProfile) -> list[ClusterRow]:
    table = profile.device(device)
    rows = []
    for key in _PEAKS:
        tflops: float | None = getattr(table, key)
        if tflops is not None:
            what = f"{device} {key.removesuffix('_tflops')}"
            rows.append(
                ClusterRow(what=what, value=f"{tflops:g} TFLOPS", source=_origin(device, key, profile))
            )
    bandwidth_key = "memory_tb_s" if table.measured_copy_tb_s is None else "measured_copy_tb_s"
    rate_bytes_s = profile.device_number(device, bandwidth_key) * 1e12
    size_key = "memory_gb" if table.memory_mib is None else "memory_mib"
    size = f"{profile.device_number(device, size_key):g} {'GB' if size_key == 'memory_gb' else 'MiB'}"
    for what, value, key in (
        ("memory bandwidth", format_rate(rate_bytes_s, digits=4), bandwidth_key),
        ("memory", size, size_key),
    ):
        rows.append(ClusterRow(what=f"{device} {what}", value=value, source=_origin(device, key, profile)))
    return rows


def _level_rows(where: str, level: Level, note: str, *, latency_given: bool = False) -> list[ClusterRow]:
    latency_source = "the cluster's network" if latency_given else "the link's latency_us"
    return [
        ClusterRow(
            what=f"bandwidth {where} and direction",
            value=format_rate(level.bandwidth_bytes_s, digits=4),
            source=level.source + note,
        ),
        ClusterRow(
            what=f"latency {where.split(',')[0]}, one hop",
            value=format_duration(level.latency_s),
            source=latency_source + note,
        ),
    ]


def _origin(device: str, key: str, profile: CostProfile) -> str:
    source = profile.device(device).source
    return profile.origin("device", device, key) + (f" (source {source})" if source else "")
