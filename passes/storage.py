"""Parameters: how they may be stored, who reduces their gradients, and what that costs.

A parameter is stored contiguously: the axes that compute with a part of it may keep that part, a strided
part (the ``n`` of a fused ``(3 n)``) is exchanged at use. On a data axis (dp, cp) where every use is R*
and the parameter is trained, the runtime owns the reduction and may shard the storage (ZeRO); elsewhere
the graph owns it. Exactly one of the two does (``owner``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from autopar.cost_model import OpCost, slowest_compute_s
from autopar.ir.layout import RSTAR, Layout, Shard, stacked
from autopar.ir.mesh import across, within
from autopar.passes.candidate import DATA_AXES, reduces_gradients
from autopar.passes.once import step_axes
from autopar.passes.peak import ParameterBytes
from autopar.passes.pricing import Pricing, nanoseconds


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


# Parameters of one shape ask alike, and each twice: what is kept, and how it comes to where it is used.
@functools.lru_cache(maxsize=1 << 14)
def runtime_axes(storage: Layout, needs: tuple[Layout, ...], *, trainable: bool) -> tuple[str, ...]:
    """Axes whose reduction the runtime owns: every use returns a partial gradient there, and it may cut the storage.

    ``trainable``: and no single number, which FSDP2 refuses: its gradient is added up at the end of the step.
    """
    mesh = needs[0].mesh
    return tuple(
        axis for axis in mesh.names
        if trainable and reduces_gradients(axis) and mesh.size(axis) > 1
        and not isinstance(storage[axis], Shard) and all(need[axis] == RSTAR for need in needs)
    )  # fmt: skip


def settled_axes(storage: Layout, needs: tuple[Layout, ...], *, trainable: bool) -> tuple[str, ...]:
    """Axes whose sum of gradients no operation's backward waits for: the runtime's, and those of the step's end."""
    owned = runtime_axes(storage, needs, trainable=trainable)
    return (*owned, *step_axes(storage, needs, owned, trainable=trainable))


def as_used(storage: Layout, owned: Sequence[str]) -> Layout:
    """The layout that the program's own conversions start from: owned axes are settled already."""
    for axis in owned:
        storage = storage.replace(axis, RSTAR)
    return storage


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
