"""Seconds and bytes from metadata: hardware figures, collectives, compute, memory. Never imports torch."""

from __future__ import annotations

from autopar.cost_model.cluster import Cluster, Network, NodeGroup
from autopar.cost_model.collectives import CollectiveKind, CollectiveLine, collective_lines, collective_s
from autopar.cost_model.compute import (
    compute_s,
    efficiency_source,
    efficiency_sources,
    overlap_fraction,
    slowest_compute_s,
)
from autopar.cost_model.describe import ClusterRow, describe
from autopar.cost_model.memory import default_budget_bytes, device_memory_bytes, optimizer_state_bytes
from autopar.cost_model.priced import Group, OpCost
from autopar.cost_model.profile import CostProfile
from autopar.cost_model.profile_registry import ProfileEntry, list_profiles, load_profile
from autopar.cost_model.rates import EfficiencySource
from autopar.cost_model.topology import axis_groups, crowded, inside_nodes, neighbours, only_parameters_cross
from autopar.cost_model.units import (
    format_bytes,
    format_duration,
    format_rate,
    parse_bytes,
    parse_duration_s,
    parse_rate_bytes_s,
)

__all__ = [
    "Cluster",
    "ClusterRow",
    "CollectiveKind",
    "CollectiveLine",
    "CostProfile",
    "EfficiencySource",
    "Group",
    "Network",
    "NodeGroup",
    "OpCost",
    "ProfileEntry",
    "axis_groups",
    "collective_lines",
    "collective_s",
    "compute_s",
    "crowded",
    "default_budget_bytes",
    "describe",
    "device_memory_bytes",
    "efficiency_source",
    "efficiency_sources",
    "format_bytes",
    "format_duration",
    "format_rate",
    "inside_nodes",
    "list_profiles",
    "load_profile",
    "neighbours",
    "only_parameters_cross",
    "optimizer_state_bytes",
    "overlap_fraction",
    "parse_bytes",
    "parse_duration_s",
    "parse_rate_bytes_s",
    "slowest_compute_s",
]
