"""What it costs to keep a parameter, in any number of microbatches: each adds as much as the one before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from autopar.cost_model import optimizer_state_bytes
from autopar.ir.layout import Layout, Shard
from autopar.ir.program import DATA_AXIS
from autopar.passes.candidate import Mode, Settings, StoredParameter, cost_level
from autopar.passes.facts import Fact
from autopar.passes.hybrid import cut_inside
from autopar.passes.once import step_axes
from autopar.passes.pricing import Pricing, local_bytes
from autopar.passes.problem import FORBIDDEN, IntArray
from autopar.passes.storage import added_ns, parameter_bytes, reductions, runtime_axes, update_ns


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Costs of keeping and updating one parameter: [storage, needs, mode].

    ``hide_ns``: traffic of the last backward with what comes once a step, ``earlier_ns``: of those before it,
    ``ahead_ns``: of all forwards. ``further_ns``: what a further microbatch adds to ``sync_ns``.
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


class _Numbers(NamedTuple):
    """Of one way to keep a parameter: of one microbatch, and what each further one adds."""

    sync_ns: int
    hide_ns: int = 0
    ahead_ns: int = 0
    bytes: int = 0
    transient_bytes: int = 0
    further_ns: int = 0
    further_earlier_ns: int = 0
    further_ahead_ns: int = 0


_NEVER = _Numbers(FORBIDDEN)


class _Sizes(NamedTuple):
    """Bytes of a device's part of a parameter, as stored and as computed with, and of the optimizer's state."""

    whole: int
    used: int
    state: int


@dataclass(frozen=True)
class Upkeep:
    """``numbers``: those of ``_Numbers``, [number, storage, needs, mode]."""

    numbers: IntArray

    def of(self, microbatches: int) -> Kept:
        """In so many; more than one if it was worked out for more than one."""
        sync, hide, ahead, held, passing, further, earlier, later = self.numbers
        more = microbatches - 1
        return Kept(
            sync_ns=sync + more * further, hide_ns=hide, earlier_ns=more * earlier, ahead_ns=ahead + more * later,
            bytes=held, transient_bytes=passing, further_ns=further,
        )  # fmt: skip


def upkeep(
    fact: Fact,
    stored: StoredParameter,
    layouts: Sequence[Layout],
    needs: Sequence[tuple[Layout, ...]],
    modes: Sequence[Mode],
    *,
    pricing: Pricing,
    settings: Settings,
    microbatches: int,
    root: bool,
    among: int,
    together: int,
    ample: bool = False,
) -> Upkeep:
    """Price every (storage, set of layouts needed, mode). Conversions other than the runtime's are not in it.

    ``among``: trained parameters of the block, which FSDP2 gathers and reduces at once; ``together``: parameters that
    are summed at once at the end of a step (``Ground.together``). Follows from ``microbatches`` where these are
    ``ample``; else only from whether there is more than one.
    """
    shape = (len(layouts), len(needs), len(modes))
    # with memory to spare HSDP is no mode of its own: those that there are take its time where it is less
    hybrid = rivals(modes, pricing, settings, microbatches) if ample else {}
    out = np.zeros((len(_Numbers._fields), *shape), dtype=np.int64)
    # the level is no matter where nobody may cut the parameter, recomputation never is
    cache: dict[tuple[object, ...], _Numbers] = {}
    rows: dict[tuple[object, ...], IntArray] = {}  # by all that they follow from
    divisible = stored.trainable and bool(fact.type.shape)
    for i, layout in enumerate(layouts):
        sizes = _sizes(fact, stored, layout, pricing, settings)
        uneven = layout.is_padded(fact.type.shape)
        for j, need in enumerate(needs):
            kept_as_used = _kept_as_used(layout, need)
            owned = runtime_axes(layout, need, trainable=divisible) if not stored.buffer else ()
            if pricing.uneven and divisible and not stored.buffer:
                owned = (DATA_AXIS,)  # however it is used (``uneven.py``)
            late = step_axes(layout, need, owned, trainable=stored.trainable and not stored.buffer)
            # FSDP2 puts even parts together only; of a set some layouts may turn out not to be needed
            some = owned or any(runtime_axes(layout, (one,), trainable=divisible) for one in need)
            whole_only = uneven and not stored.buffer and bool(some)
            signature = sizes, owned, late, kept_as_used, whole_only
            if signature in rows:
                out[:, i, j] = rows[signature]
                continue
            row: list[_Numbers] = []
            for mode in modes:
                if (mode.zero < 3 and not kept_as_used) or (mode.zero and whole_only):
                    row.append(_NEVER)
                    continue
                key = (sizes, owned, late, mode.zero, mode.inside) if owned else (sizes, late)
                found = cache.get(key)
                if found is None:
                    found = cache[key] = _least_hidden([
                        _one(
                            fact, stored, sizes, owned, late, one, pricing, settings, root=root, among=among,
                            together=together, once=microbatches == 1,
                        ) for one in (mode, *(hybrid.get(mode, ()) if owned else ()))
                    ], microbatches)  # fmt: skip
                row.append(found)
            out[:, i, j] = rows[signature] = np.array(row, dtype=np.int64).T
    return Upkeep(out)


def rivals(
    modes: Sequence[Mode], pricing: Pricing, settings: Settings, microbatches: int
) -> dict[Mode, tuple[Mode, ...]]:
    """Modes with HSDP whose communication may take less time than that of ``modes``, each beside one of these."""
    levels = tuple(dict.fromkeys(mode.zero for mode in modes))
    hybrid = settings.hybrid_levels(levels, pricing.inside, microbatches=microbatches)
    return {mode: (replace(mode, inside=pricing.inside),) for mode in modes if mode.zero in hybrid}


def _least_hidden(ways: Sequence[_Numbers], microbatches: int) -> _Numbers:
    """The first way, with the least traffic of all in so many microbatches."""
    if len(ways) == 1:
        return ways[0]
    return ways[0]._replace(
        hide_ns=min(way.hide_ns for way in ways),
        further_earlier_ns=min(way.further_earlier_ns for way in ways),
        ahead_ns=min(way.ahead_ns + (microbatches - 1) * way.further_ahead_ns for way in ways),
        further_ahead_ns=0,
    )


def _kept_as_used(layout: Layout, needs: Iterable[Layout]) -> bool:
    """Whether every axis that the storage is cut over computes with its part only.

    Storage cut finer than its use is ZeRO 3, whatever the axis is called.
    """
    return all(
        isinstance(need[axis], Shard)
        for axis, placement in zip(layout.mesh.names, layout.placements, strict=True) if isinstance(placement, Shard)
        for need in needs
    )  # fmt: skip


def _sizes(
    fact: Fact, stored: StoredParameter, layout: Layout, pricing: Pricing, settings: Settings
) -> _Sizes:  # fmt: skip
    whole, used, state = local_bytes(layout, fact.type, stored.dtype), local_bytes(layout, fact.type), 0
    if stored.trainable and not stored.buffer:
        local = layout.local_shape(fact.type.shape)
        state = optimizer_state_bytes(settings.optimizer, local, stored.dtype, pricing.profile)
    return _Sizes(whole, used, state)


def _one(
    fact: Fact, stored: StoredParameter, sizes: _Sizes, owned: tuple[str, ...], late: tuple[str, ...], mode: Mode,
    pricing: Pricing, settings: Settings, *, root: bool, among: int, together: int, once: bool,
) -> _Numbers:  # fmt: skip
    """One way to keep the parameter. ``once``: there is one microbatch."""
    (whole, used, state), size_of = sizes, pricing.mesh.size
    if not stored.trainable or stored.buffer:
        return _Numbers(0, bytes=whole + (used if fact.type.dtype != stored.dtype else 0))
    zero = cost_level(mode.zero, settings) if owned else 0
    inside = cut_inside(mode.inside, owned, size_of) if zero else ()
    parts = math.prod(inside or map(size_of, owned)) if zero else 1
    cast = fact.type.dtype != stored.dtype
    several = 1 if once else 2  # what differs between two differs between any two neighbours
    size = parameter_bytes(whole, used, state, parts, zero, several, owned=bool(owned), root=root, cast=cast)
    held, transient = (replace(size, copy=0) if settings.pooled else size).summed(root=root)
    piped = settings.schedule is not None
    hide = ahead = behind = more_behind = more_earlier = more_ahead = 0
    for kind, axis, amount, phase, count in reductions(
        owned, used, whole, size_of, mode.zero if owned else 0, several, root=root, inside=inside, piped=piped,
    ):
        once_ns = pricing.shared_ns(kind, amount, axis, among)
        again_ns = (count - 1) * once_ns
        if piped and pricing.crowded(axis):  # what a backward gathers is in the way of its first collectives
            behind, more_behind = behind + once_ns, more_behind + again_ns
        elif phase == "forward" and not root:
            ahead, more_ahead = ahead + once_ns, more_ahead + again_ns
        else:
            more_earlier += again_ns
            if root or (piped and phase == "grad"):  # nothing is computed then
                behind += once_ns
            else:
                hide += once_ns
    at_the_end = sum(pricing.shared_ns("all_reduce", -(-whole // parts), axis, together) for axis in late)
    added = added_ns(whole, used, parts if zero >= 2 and not piped else 1, stored.dtype, pricing)
    update = update_ns(whole, state, parts, stored.dtype, pricing)
    return _Numbers(
        behind + at_the_end + update, hide, ahead, held, transient, added + more_behind, more_earlier, more_ahead
    )
