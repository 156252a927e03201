"""Bytes that training holds besides the model's own tensors: optimizer state, and the margin of a device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.cost_model.cluster import Cluster
from autopar.cost_model.dtypes import dtype_bytes
from autopar.cost_model.profile import CostProfile
from autopar.cost_model.units import MIB_BYTES


def optimizer_state_bytes(optimizer: str, shape: Sequence[int], dtype: str, profile: CostProfile) -> int:
    """Bytes of state for one parameter tensor of local ``shape`` and element type ``dtype``.

    The rows of ``[optimizer]`` say what is kept. Raises ``UsageError`` for an unknown optimizer,
    ``FileFormatError`` for a row that lacks a key.
    """
    row = profile.optimizer(optimizer)
    for key in ("states", "factored", "state_dtype", "tensor_bytes"):
        if getattr(row, key) is None:
            raise profile.missing(("optimizer", optimizer, key), "there is no default")
    elements = math.prod(shape)
    if row.factored and len(shape) >= 2:
        *batch, rows, columns = shape
        elements = math.prod(batch) * (rows + columns)
    state_dtype = dtype if row.state_dtype in (None, "parameter") else row.state_dtype
    return (row.states or 0) * elements * dtype_bytes(state_dtype) + (row.tensor_bytes or 0)


def device_memory_bytes(cluster: Cluster, profile: CostProfile) -> int:
    """Bytes of a device's memory, of the smallest where devices differ.

    What the driver reports (``memory_mib``) where known, else the maker's figure (``memory_gb``).
    """
    return min(_memory_bytes(device, profile) for device in cluster.devices)


def default_budget_bytes(cluster: Cluster, profile: CostProfile) -> int:
    """Bytes of a device that a plan may use where the user sets no budget: ``[memory] budget_fraction``."""
    return int(device_memory_bytes(cluster, profile) * profile.section_number("memory", "budget_fraction"))


def _memory_bytes(device: str, profile: CostProfile) -> int:
    memory_mib = profile.device(device).memory_mib
    if memory_mib is not None:
        return int(memory_mib * MIB_BYTES)
    return int(profile.device_number(device, "memory_gb") * 1e9)
