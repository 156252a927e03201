"""Seconds of one op on one device: a roofline.

    max(flops / (peak of the element type x efficiency), bytes / memory bandwidth, mixed elements / their rate)

The efficiency is the curve of the op class where the profile has one, else for ``matmul`` the measured over
the peak rate, else 1. Integers and bool are priced by bytes alone. Measured seconds of the op win over flops and
bytes, and a profile's ``compute_s`` wins over all. What a plan reports of this is
``efficiency_sources``.
"""

from __future__ import annotations

from collections.abc import Iterable

from autopar.cost_model.cluster import Cluster
from autopar.cost_model.priced import OpCost
from autopar.cost_model.profile import CostProfile, hook_s
from autopar.cost_model.rates import EfficiencySource, Rates, rates


def compute_s(op: OpCost, device: str, profile: CostProfile) -> float:
    """Seconds of ``op`` on ``device``.

    Raises ``FileFormatError`` naming the number that the profile lacks, ``UsageError`` for an unknown device.
    """
    if profile.has_compute_hook:
        hooked_s = hook_s(profile, "compute_s", f"{op.target} on {device}", op, device)
        if hooked_s is not None:
            return hooked_s
    rate = rates(profile, device, op.dtype, op.op_class, op.target)
    mixed_s = op.mixed_elements * rate.s_per_mixed_element
    return max(mixed_s, _roofline_s(op, device, profile, rate))


def _roofline_s(op: OpCost, device: str, profile: CostProfile, rate: Rates) -> float:
    """By measured seconds, or by flops and bytes."""
    flops, size_bytes = op.flops, op.bytes
    if rate.measured_s is not None:
        return rate.measured_s(size_bytes if rate.measured_by_bytes else flops)
    memory_s = 0.0
    if size_bytes:
        if rate.s_per_byte is None:
            profile.device_number(device, "memory_tb_s")  # raises, naming the key
            return 0.0
        memory_s = size_bytes * rate.s_per_byte
    if not flops:
        return memory_s
    if rate.s_per_flop is None:
        profile.device_number(device, rate.peak_key or "")  # raises, naming the key
        return 0.0
    flops_s = flops * rate.s_per_flop
    if rate.efficiency is not None:
        flops_s /= rate.efficiency(flops)
    return max(flops_s, memory_s)


def slowest_compute_s(op: OpCost, cluster: Cluster, profile: CostProfile) -> float:
    """Seconds of ``op`` on the slowest device of ``cluster``, for which the others wait."""
    return max(compute_s(op, device, profile) for device in cluster.devices)


def efficiency_source(op: OpCost, device: str, profile: CostProfile) -> EfficiencySource:
    """How ``op`` is priced.

    ``hook``: by the profile's Python code. ``measured_seconds``: by a table of this op. ``curve``,
    ``measured_rate``, ``peak``: the roofline with that efficiency, ``peak`` being 1.0 for want of a figure.
    ``bytes_only``: integers.
    """
    if profile.has_compute_hook and profile.compute_s(op, device) is not None:
        return "hook"
    return rates(profile, device, op.dtype, op.op_class, op.target).source


def efficiency_sources(
    ops: Iterable[OpCost], device: str, profile: CostProfile
) -> dict[str, tuple[EfficiencySource, ...]]:
    """For each op class in name order, the ways in which its ops were priced, in name order."""
    found: dict[str, set[EfficiencySource]] = {}
    for op in ops:
        found.setdefault(op.op_class, set()).add(efficiency_source(op, device, profile))
    return {op_class: tuple(sorted(found[op_class])) for op_class in sorted(found)}


def overlap_fraction(device: str, profile: CostProfile) -> float:
    """The share of compute time on ``device`` behind which communication can hide.

    The device's own figure, else that of ``[overlap]``.
    """
    own = profile.device(device).overlap_fraction
    return profile.section_number("overlap", "fraction") if own is None else own
