"""Seconds of a collective: start + hops x latency + bytes / bandwidth, inside and between nodes.

Payload ``V`` is the bytes of one rank *before* the collective: the shard of an all_gather, the whole tensor
of an all_reduce or reduce_scatter, the whole local tensor of an all_to_all or broadcast. A group has ``n``
ranks on ``N`` nodes, ``m`` on each. ``A`` is the bandwidth of a device inside its node, ``B`` that of a
node; ``g`` groups of the axis share a node and communicate at once, so a group gets ``B/g``. Latencies
``a`` inside, ``b`` between.

Two algorithms, of which the cheaper counts:

flat ring        slowest link ``W = min(A, B/g)``; the ring passes N node borders, as in NCCL's tuning:
                 all_reduce ``2(n-1)/n V/W``, reduce_scatter half of it, all_gather ``(n-1) V/W``, broadcast
                 ``V/W``
hierarchical     inside the nodes on ``A``, then between them, every device with its 1/m part:
                 reduce_scatter ``(m-1)/m V/A + (N-1)/N V/(B/g)``, all_gather the same of ``n V`` bytes,
                 all_reduce both, broadcast ``V/A + V/(B/g)``

all_to_all sends ``V/n`` to each rank: flat alone, both levels at once, ``max((m-1)/n V/A, (n-m)/n m V/(B/g))``. In
two steps, inside the nodes and then across them, it is two collectives, each with its own group. Each algorithm is a
line in ``V``, so the cost is the least of lines.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from autopar.cost_model.cluster import Cluster
from autopar.cost_model.levels import Level, inter_level, intra_level
from autopar.cost_model.priced import Group
from autopar.cost_model.profile import CostProfile, hook_s
from autopar.ir.errors import UsageError

CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]


@dataclass(frozen=True, kw_only=True)
class CollectiveLine:
    """The cost of one algorithm: ``start_s + s_per_byte * payload_bytes``."""

    algorithm: Literal["ring", "hierarchical"]
    start_s: float
    s_per_byte: float


def collective_s(
    kind: str, payload_bytes: int, group: Group, cluster: Cluster, profile: CostProfile
) -> float:
    """Seconds of one collective; 0 for a group of one. Rises with ``payload_bytes``.

    A profile's ``collective_s`` wins. Raises ``UsageError`` for an unknown kind, ``FileFormatError`` for a
    missing number.
    """
    if group.size == 1:
        return 0.0
    if profile.has_collective_hook:
        hooked_s = hook_s(profile, "collective_s", f"{kind} over {group.axis}", kind, payload_bytes, group)
        if hooked_s is not None:
            return hooked_s
    lines = collective_lines(kind, group, cluster, profile)
    return min(line.start_s + line.s_per_byte * payload_bytes for line in lines)


@functools.lru_cache(maxsize=16384)
def collective_lines(
    kind: str, group: Group, cluster: Cluster, profile: CostProfile
) -> tuple[CollectiveLine, ...]:
    """The built-in cost of every algorithm for this group, without the profile's hook."""
    if kind not in get_args(CollectiveKind):
        raise UsageError(
            f"unknown collective {kind!r}; expected one of {', '.join(get_args(CollectiveKind))}"
        )
    intra = intra_level(cluster, profile)
    if group.nodes == 1:
        return (_inside(kind, group, intra),)
    inter = inter_level(cluster, profile)
    groups_per_node = max(1.0, cluster.gpus_per_node / group.ranks_per_node)
    border_bytes_s = inter.bandwidth_bytes_s / groups_per_node
    flat = _flat(kind, group, intra, inter, border_bytes_s)
    if kind == "all_to_all" or group.ranks_per_node == 1 or group.ranks_per_node * group.nodes != group.size:
        return (flat,)
    return (flat, _hierarchical(kind, group, intra, inter, border_bytes_s))


def _inside(kind: str, group: Group, intra: Level) -> CollectiveLine:
    n = group.size
    return CollectiveLine(
        algorithm="ring",
        start_s=intra.base_latency_s + rounds(kind) * (n - 1) * intra.latency_s,
        s_per_byte=inside_volume(kind, n) / intra.bandwidth_bytes_s,
    )


def _flat(kind: str, group: Group, intra: Level, inter: Level, border_bytes_s: float) -> CollectiveLine:
    n, m, nodes = group.size, group.ranks_per_node, group.nodes
    intra_hops, inter_hops = n - nodes, nodes - 1
    if kind == "all_to_all":
        intra_hops, inter_hops = m - 1, n - m
        inside_s = (m - 1) / n / intra.bandwidth_bytes_s
        s_per_byte = max(inside_s, (n - m) / n * m / border_bytes_s)
    else:
        slowest_bytes_s = border_bytes_s if m == 1 else min(intra.bandwidth_bytes_s, border_bytes_s)
        s_per_byte = _ring_volume(kind, n) / slowest_bytes_s
    hops_s = intra_hops * intra.latency_s + inter_hops * inter.latency_s
    return CollectiveLine(
        algorithm="ring", start_s=_base_s(intra, inter) + rounds(kind) * hops_s, s_per_byte=s_per_byte
    )


def _hierarchical(
    kind: str, group: Group, intra: Level, inter: Level, border_bytes_s: float
) -> CollectiveLine:
    n, m, nodes = group.size, group.ranks_per_node, group.nodes
    inside, between = (m - 1) / m, (nodes - 1) / nodes
    if kind == "all_gather":
        inside, between = inside * n, between * n
    elif kind == "broadcast":
        inside, between = 1.0, 1.0
    elif kind == "all_reduce":
        inside, between = 2 * inside, 2 * between
    hops_s = (m - 1) * intra.latency_s + (nodes - 1) * inter.latency_s
    return CollectiveLine(
        algorithm="hierarchical",
        start_s=_base_s(intra, inter) + rounds(kind) * hops_s,
        s_per_byte=inside / intra.bandwidth_bytes_s + between / border_bytes_s,
    )


def inside_volume(kind: str, n: int) -> float:
    """Bytes that a device sends inside its node, per byte of payload."""
    return (n - 1) / n if kind == "all_to_all" else _ring_volume(kind, n)


def _ring_volume(kind: str, n: int) -> float:
    """Bytes that pass each link of a ring, per byte of payload."""
    volumes = {
        "all_reduce": 2 * (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "all_gather": n - 1.0,
        "broadcast": 1.0,
    }
    return volumes[kind]


def rounds(kind: str) -> int:
    """An all_reduce is a reduce_scatter and an all_gather."""
    return 2 if kind == "all_reduce" else 1


def _base_s(intra: Level, inter: Level) -> float:
    """One start, whatever the algorithm."""
    return max(intra.base_latency_s, inter.base_latency_s)
