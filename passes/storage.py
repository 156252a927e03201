"""Parameters: how they may be stored, who reduces their gradients, and what that costs.

A parameter is stored contiguously: the axes that compute with a part of it may keep that part, a strided
part (the ``n`` of a fused ``(3 n)``) is exchanged at use. On a data axis (dp, cp) where every use is R*
and the parameter is trained, the runtime owns the reduction and may shard the storage (ZeRO); elsewhere
the graph owns it. Exactly one of the two does (``owner``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.cost_model import OpCost, optimizer_state_bytes, slowest_compute_s
from autopar.ir.layout import RSTAR, Layout, Shard, stacked
from autopar.passes.candidate import DATA_AXES, Mode, Settings, StoredParameter, reduces_gradients
from autopar.passes.conversions import Conversions
from autopar.passes.facts import Fact
from autopar.passes.once import step_axes
from autopar.passes.pricing import Pricing, local_bytes, nanoseconds
from autopar.passes.problem import FORBIDDEN, IntArray


def storages(demands: Sequence[Layout], shape: tuple[int, ...]) -> tuple[Layout, ...]:
    """Layouts in which the parameter may be kept: what computing needs, made contiguous; or whole."""
    found: list[Layout] = []
    for demand in demands:
        owned = [
            (axis, placement.dim, 1)
            for axis, placement in zip(demand.mesh.names, demand.placements, strict=True)
            if isinstance(placement, Shard) and axis not in DATA_AXES
        ]
        layout = Layout.of(demand.mesh, stacked(demand.mesh, owned))
        if layout.problem(shape) is None:
            found.append(layout)
    found.append(Layout.replicated(demands[0].mesh))
    return tuple(dict.fromkeys(found))


def runtime_axes(storage: Layout, needs: Sequence[Layout], *, trainable: bool) -> tuple[str, ...]:
    """Axes whose reduction the runtime owns: every use returns a partial gradient there, and it may cut the storage."""
    mesh = needs[0].mesh
    return tuple(
        axis for axis in mesh.names
        if trainable and reduces_gradients(axis) and mesh.size(axis) > 1
        and not isinstance(storage[axis], Shard) and all(need[axis] == RSTAR for need in needs)
    )  # fmt: skip


def settled_axes(storage: Layout, needs: Sequence[Layout], *, trainable: bool) -> tuple[str, ...]:
    """Axes whose sum of gradients no operation's backward waits for: the runtime's, and those of the step's end."""
    owned = runtime_axes(storage, needs, trainable=trainable)
    return (*owned, *step_axes(storage, needs, owned, trainable=trainable))


def as_used(storage: Layout, owned: Sequence[str]) -> Layout:
    """The layout that the program's own conversions start from: owned axes are settled already."""
    for axis in owned:
        storage = storage.replace(axis, RSTAR)
    return storage


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Costs of keeping and updating one parameter: [storage, needs, mode]."""

    sync_ns: IntArray
    hide_ns: IntArray
    bytes: IntArray
    transient_bytes: IntArray


def keep(
    fact: Fact,
    stored: StoredParameter,
    layouts: Sequence[Layout],
    needs: Sequence[tuple[Layout, ...]],
    modes: Sequence[Mode],
    *,
    conversions: Conversions,
    settings: Settings,
    microbatches: int,
    root: bool,
) -> Kept:
    """Price every (storage, set of layouts needed, mode). Conversions other than the runtime's are not in it."""
    shape = (len(layouts), len(needs), len(modes))
    out = {
        name: np.zeros(shape, dtype=np.int64) for name in ("sync_ns", "hide_ns", "bytes", "transient_bytes")
    }
    cache: dict[tuple[int, tuple[str, ...], tuple[str, ...], Mode], tuple[int, int, int, int]] = {}
    for i, layout in enumerate(layouts):
        for j, need in enumerate(needs):
            owned = runtime_axes(layout, need, trainable=stored.trainable) if not stored.buffer else ()
            late = step_axes(layout, need, owned, trainable=stored.trainable and not stored.buffer)
            for k, mode in enumerate(modes):
                uneven = any(layout.padded(dim, extent) for dim, extent in enumerate(fact.type.shape))
                # FSDP2 puts even parts together only
                if (mode.zero < 3 and not _kept_as_used(layout, need)) or (mode.zero and owned and uneven):
                    out["sync_ns"][i, j, k] = FORBIDDEN
                    continue
                key = (i, owned, late, mode)
                if key not in cache:
                    cache[key] = _one(
                        fact,
                        stored,
                        layout,
                        owned,
                        late,
                        mode,
                        conversions.pricing,
                        settings,
                        microbatches,
                        root=root,
                    )
                for name, number in zip(out, cache[key], strict=True):
                    out[name][i, j, k] = number
    return Kept(**out)


def _kept_as_used(layout: Layout, needs: Sequence[Layout]) -> bool:
    """Whether every axis that the storage is cut over computes with its part only.

    Storage cut finer than its use is ZeRO 3, whatever the axis is called.
    """
    return all(
        isinstance(need[axis], Shard)
        for axis, placement in zip(layout.mesh.names, layout.placements, strict=True) if isinstance(placement, Shard)
        for need in needs
    )  # fmt: skip


def _one(
    fact: Fact, stored: StoredParameter, layout: Layout, owned: tuple[str, ...], late: tuple[str, ...], mode: Mode,
    pricing: Pricing, settings: Settings, microbatches: int, *, root: bool,
) -> tuple[int, int, int, int]:  # fmt: skip
    """(sync ns, hideable ns, bytes, transient bytes) of one way to keep the parameter."""
    whole = local_bytes(layout, fact.type, stored.dtype)
    used = local_bytes(layout, fact.type)
    if not stored.trainable or stored.buffer:
        return 0, 0, whole + (used if fact.type.dtype != stored.dtype else 0), 0
    sharded = mode.zero == 3 and bool(owned)
    parts = math.prod(layout.mesh.size(axis) for axis in owned) if sharded else 1
    state = optimizer_state_bytes(
        settings.optimizer, layout.local_shape(fact.type.shape), stored.dtype, pricing.profile
    )
    held = -(-(2 * whole + state) // parts)
    if not sharded or root:
        held += used  # the copy that computing reads stays through the step
    # gathered for computing (the next block's too, prefetched), gradients whole until reduced
    transient = 2 * used + whole if sharded and not root else 0
    hide = _reduction_ns(
        owned, used, whole, layout.mesh.size, pricing, microbatches, sharded=sharded, root=root
    )
    moved = 2 * (whole + state) + whole  # read and write parameter and state, read the gradient
    at_the_end = sum(pricing.collective_ns("all_reduce", -(-whole // parts), axis) for axis in late)
    return at_the_end + _update_ns(moved // parts, stored, pricing), hide, held, transient


def _reduction_ns(
    owned: tuple[str, ...], used: int, whole: int, size: Callable[[str], int], pricing: Pricing,
    microbatches: int, *, sharded: bool, root: bool,
) -> int:  # fmt: skip
    """Communication that the runtime does for the parameter in a step.

    Replicated: one all_reduce a step. Sharded: gathered for every forward, and again for backward unless it
    is the root's; gradients are scattered every microbatch, so that they are never kept whole.
    """
    total = 0
    for axis in owned:
        if sharded:
            used, scattered, whole = -(-used // size(axis)), whole, -(-whole // size(axis))
            gathers = microbatches * (1 if root else 2)
            total += gathers * pricing.collective_ns("all_gather", used, axis)
            total += microbatches * pricing.collective_ns("reduce_scatter", scattered, axis)
        else:
            total += pricing.collective_ns("all_reduce", whole, axis)
    return total


def _update_ns(moved_bytes: int, stored: StoredParameter, pricing: Pricing) -> int:
    cost = OpCost(
        target="optimizer",
        op_class="optimizer",
        dtype=stored.dtype,
        flops=0,
        bytes=moved_bytes,
        phase="backward",
        shapes=(),
    )
    return nanoseconds(slowest_compute_s(cost, pricing.cluster, pricing.profile))
