"""Parameters: how they may be stored, who reduces their gradients, and what that costs.

A parameter is stored contiguously: the axes that compute with a part of it may keep that part, a strided
part (the ``n`` of a fused ``(3 n)``) is exchanged at use. On a data axis (dp, cp) where every use is R*
and the parameter is trained, the runtime owns the reduction and may shard the storage (ZeRO); elsewhere
the graph owns it. Exactly one of the two does (``owner``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from autopar.cost_model import OpCost, optimizer_state_bytes, slowest_compute_s
from autopar.ir.layout import RSTAR, Layout, Shard, stacked
from autopar.ir.mesh import across, within
from autopar.ir.program import DATA_AXIS
from autopar.passes.candidate import DATA_AXES, Mode, Settings, StoredParameter, cost_level, reduces_gradients
from autopar.passes.conversions import Conversions
from autopar.passes.facts import Fact
from autopar.passes.hybrid import cut_inside
from autopar.passes.once import step_axes
from autopar.passes.peak import ParameterBytes
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
    """Axes whose reduction the runtime owns: every use returns a partial gradient there, and it may cut the storage.

    ``trainable``: and no single number, which FSDP2 refuses: its gradient is added up at the end of the step.
    """
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


_Numbers: TypeAlias = tuple[int, int, int, int, int, int, int]
_NEVER: _Numbers = (FORBIDDEN, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Costs of keeping and updating one parameter: [storage, needs, mode].

    ``hide_ns``: traffic of the last backward with what comes once a step, ``earlier_ns``: of those before it,
    ``ahead_ns``: of all forwards. ``further_ns``: what a further microbatch adds to ``sync_ns`` at least.
    """

    sync_ns: IntArray
    hide_ns: IntArray
    earlier_ns: IntArray
    ahead_ns: IntArray
    bytes: IntArray
    transient_bytes: IntArray
    further_ns: IntArray

    def picked(self, needs: IntArray) -> Kept:
        """Of these sets of layouts needed, in this order."""
        return Kept(**{field.name: getattr(self, field.name)[:, needs] for field in fields(Kept)})


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
    among: int,
    together: int,
    ample: bool = False,
) -> Kept:
    """Price every (storage, set of layouts needed, mode). Conversions other than the runtime's are not in it.

    ``among``: trained parameters of the block, which FSDP2 gathers and reduces at once; ``together``: parameters that
    are summed at once at the end of a step (``Ground.together``).
    """
    shape = (len(layouts), len(needs), len(modes))
    # with memory to spare HSDP is no mode of its own: those that there are take its time where it is less
    hybrid = rivals(modes, conversions.pricing, settings, microbatches) if ample else {}
    out = np.zeros((len(fields(Kept)), *shape), dtype=np.int64)
    # the level is no matter where nobody may cut the parameter, recomputation never is
    cache: dict[tuple[object, ...], _Numbers] = {}
    rows: dict[tuple[object, ...], IntArray] = {}  # by all that those of one storage follow from
    divisible = stored.trainable and bool(fact.type.shape)
    for i, layout in enumerate(layouts):
        uneven = layout.is_padded(fact.type.shape)
        for j, need in enumerate(needs):
            kept_as_used = _kept_as_used(layout, need)
            owned = runtime_axes(layout, need, trainable=divisible) if not stored.buffer else ()
            if conversions.pricing.uneven and divisible and not stored.buffer:
                owned = (DATA_AXIS,)  # however it is used (``uneven.py``)
            late = step_axes(layout, need, owned, trainable=stored.trainable and not stored.buffer)
            # FSDP2 puts even parts together only; of a set some layouts may turn out not to be needed
            some = owned or any(runtime_axes(layout, (one,), trainable=divisible) for one in need)
            whole_only = uneven and not stored.buffer and bool(some)
            signature = i, owned, late, kept_as_used, whole_only
            if signature in rows:
                out[:, i, j] = rows[signature]
                continue
            row: list[_Numbers] = []
            for mode in modes:
                if (mode.zero < 3 and not kept_as_used) or (mode.zero and whole_only):
                    row.append(_NEVER)
                    continue
                key = (i, owned, late, mode.zero, mode.inside) if owned else (i, late)
                found = cache.get(key)
                if found is None:
                    found = cache[key] = _least_hidden(
                        _one(
                            fact, stored, layout, owned, late, one, conversions.pricing, settings, microbatches,
                            root=root, among=among, together=together,
                        ) for one in (mode, *(hybrid.get(mode, ()) if owned else ()))
                    )  # fmt: skip
                row.append(found)
            out[:, i, j] = rows[signature] = np.array(row, dtype=np.int64).T
    return Kept(**{field.name: numbers for field, numbers in zip(fields(Kept), out, strict=True)})


def rivals(
    modes: Sequence[Mode], pricing: Pricing, settings: Settings, microbatches: int
) -> dict[Mode, tuple[Mode, ...]]:
    """Modes with HSDP whose communication may take less time than that of ``modes``, each beside one of these."""
    levels = tuple(dict.fromkeys(mode.zero for mode in modes))
    hybrid = settings.hybrid_levels(levels, pricing.inside, microbatches=microbatches)
    return {mode: (replace(mode, inside=pricing.inside),) for mode in modes if mode.zero in hybrid}


def _least_hidden(ways: Iterable[_Numbers]) -> _Numbers:
    """The first way, with the least traffic of all."""
    found = list(ways)
    hide, earlier, ahead = (min(way[at] for way in found) for at in (1, 2, 3))
    return found[0][0], hide, earlier, ahead, *found[0][4:]


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
    pricing: Pricing, settings: Settings, microbatches: int, *, root: bool, among: int, together: int,
) -> _Numbers:  # fmt: skip
    """The numbers of ``Kept`` for one way to keep the parameter."""
    whole = local_bytes(layout, fact.type, stored.dtype)
    used = local_bytes(layout, fact.type)
    if not stored.trainable or stored.buffer:
        return 0, 0, 0, 0, whole + (used if fact.type.dtype != stored.dtype else 0), 0, 0
    state = optimizer_state_bytes(
        settings.optimizer, layout.local_shape(fact.type.shape), stored.dtype, pricing.profile
    )
    zero = cost_level(mode.zero, settings) if owned else 0
    inside = cut_inside(mode.inside, owned, layout.mesh.size) if zero else ()
    parts = math.prod(inside or map(layout.mesh.size, owned)) if zero else 1
    cast = fact.type.dtype != stored.dtype
    size = parameter_bytes(
        whole, used, state, parts, zero, microbatches, owned=bool(owned), root=root, cast=cast
    )
    held, transient = (replace(size, copy=0) if settings.pooled else size).summed(root=root)
    piped = settings.schedule is not None
    hide = earlier = ahead = behind = 0
    for kind, axis, amount, phase, count in reductions(
        owned, used, whole, layout.mesh.size, mode.zero if owned else 0, microbatches, root=root, inside=inside,
        piped=piped,
    ):
        once_ns = pricing.shared_ns(kind, amount, axis, among)
        if piped and pricing.crowded(axis):  # what a backward gathers is in the way of its first collectives
            behind += count * once_ns
            continue
        if phase == "forward" and not root:
            ahead += count * once_ns
            continue
        earlier += (count - 1) * once_ns
        if root or (piped and phase == "grad"):  # nothing is computed then
            behind += once_ns
        else:
            hide += once_ns
    at_the_end = sum(pricing.shared_ns("all_reduce", -(-whole // parts), axis, together) for axis in late)
    further = added_ns(whole, used, parts if zero >= 2 and not piped else 1, stored.dtype, pricing)
    added = (microbatches - 1) * further
    sync = behind + at_the_end + added + update_ns(whole, state, parts, stored.dtype, pricing)
    return sync, hide, earlier, ahead, held, transient, further


def parameter_bytes(
    whole: int, used: int, state: int, parts: int, zero: int, microbatches: int, *, owned: bool, root: bool, cast: bool
) -> ParameterBytes:
    """Memory of a trained parameter. ``whole``, ``used``: bytes as stored and as computed with, cut by nobody yet.

    ``parts``: over how many devices ZeRO cuts it. ``owned``: FSDP2 has it. ``cast``: computing reads another type.
    """
    apart = zero == 3 and not root  # gathered for each use
    accumulated = zero < 2 and microbatches > 1  # whole, where autograd puts them
    left = -(-whole // parts)
    return ParameterBytes(
        parameter=left, state=-(-state // parts), copy=used if (owned or cast) and not apart else 0,
        before=0 if microbatches == 1 else whole if accumulated else left, gradient=left,
        made=used if owned and not accumulated else 0, sent=whole if owned else 0, gathered=2 * used if apart else 0,
    )  # fmt: skip


def reductions(
    owned: Sequence[str], used: int, whole: int, size: Callable[[str], int], zero: int, microbatches: int, *,
    root: bool, inside: Sequence[int] = (), piped: bool = False,
) -> Iterator[tuple[str, str, int, str, int]]:
    """Communication that the runtime does for a parameter in a step: (kind, axis, payload, phase, count).

    ``used``, ``whole``: bytes as computed with and as stored, before the runtime cuts them. Level 0: one
    all_reduce a step. Else parameters are gathered once a step, but at level 3 for every forward and every backward
    unless they are the root's; gradients are scattered once a step, from level 2 on every microbatch. ``inside``: all
    that among so many neighbours along each axis; then one all_reduce of a part a step among those of all nodes.
    ``piped``: torch's pipelines scatter once a step, and keep what a backward gathered for the next forward.
    """
    again = zero == 3 and not root
    for axis, parts in zip(owned, inside or map(size, owned), strict=True):
        if zero == 0:
            yield "all_reduce", axis, whole, "grad", 1
            continue
        if parts == 1:
            continue
        used, scattered, whole = -(-used // parts), whole, -(-whole // parts)
        near = within(axis) if inside else axis
        yield "all_gather", near, used, "forward", microbatches if again and not piped else 1
        if again:
            yield "all_gather", near, used, "backward", microbatches
        yield "reduce_scatter", near, scattered, "grad", microbatches if zero >= 2 and not piped else 1
    for axis, parts in zip(owned, inside, strict=False):
        if parts < size(axis):
            yield "all_reduce", across(axis), whole, "grad", 1


def added_ns(whole: int, used: int, parts: int, dtype: str, pricing: Pricing) -> int:
    """Gradients of a microbatch added to those of the earlier ones, over so many devices: two read, one written."""
    cost = OpCost(
        target="aten.add_.Tensor", op_class="pointwise", dtype=dtype, flops=0,
        bytes=(2 * whole + used) // parts, phase="backward",
    )  # fmt: skip
    return nanoseconds(slowest_compute_s(cost, pricing.cluster, pricing.profile))


def update_ns(whole: int, state: int, parts: int, dtype: str, pricing: Pricing) -> int:
    """The optimizer's step of one parameter, over so many devices: parameter and state read and written, gradient read.

    ``whole`` and ``state``: bytes, cut by nobody yet.
    """
    cost = OpCost(
        target="optimizer", op_class="optimizer", dtype=dtype, flops=0, bytes=(2 * (whole + state) + whole) // parts,
        phase="backward",
    )  # fmt: skip
    return nanoseconds(slowest_compute_s(cost, pricing.cluster, pricing.profile))
