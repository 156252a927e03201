"""Holders: the parameters that FSDP2 gathers and reduces together, and what a step does with them.

A call of a block has the parameters that no other call uses, the root all others; of each, those with the same
runtime axes make one holder (``runtime/holders.py``). Gradients are reduced in float32 or wider.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autopar.cost_model.memory import optimizer_state_bytes
from autopar.cost_model.priced import Group, OpCost
from autopar.cost_model.simulator.instructions import Move
from autopar.cost_model.simulator.prices import Prices, link
from autopar.ir.program import Parameter, Program
from autopar.ir.types import DTYPE_BYTES

ROOT = ""
GATHER, SCATTER, REDUCE = "all-gather", "reduce-scatter", "all-reduce"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes on one device before FSDP2 cuts: as computed with, and as gradients are added up."""

    used: int
    summed: int


@dataclass(frozen=True, kw_only=True)
class Holder:
    """``name``: the call that it belongs to (``layer0/3``) or "" for the root.

    ``gathers``, ``scatters`` and ``reduces``: what its streams do one after the other; ``fsdp``: whether it is
    FSDP2's at all. ``accumulates``: ns of adding a microbatch's gradients to those of earlier ones, and of the first.
    """

    name: str
    block: str
    zero: int
    fsdp: bool
    gathers: tuple[Move, ...]
    scatters: tuple[Move, ...]
    reduces: tuple[Move, ...]
    accumulates: tuple[int, int]

    @property
    def stays(self) -> bool:
        """Gathered once a step; else for each use."""
        return self.zero < 3 or self.name == ROOT


def sizes(parameter: Parameter) -> Sizes:
    numel = math.prod(parameter.layout.local_shape(parameter.type.shape))
    stored = DTYPE_BYTES[parameter.type.dtype]
    wide = max(stored, 4) if parameter.runtime_axes else stored
    return Sizes(used=numel * DTYPE_BYTES[parameter.compute_dtype], summed=numel * wide)


def holders(program: Program, prices: Prices) -> tuple[Holder, ...]:
    """The root's, then those of the calls in the order of forward."""
    owner_of = owners(program)
    groups: dict[str, list[Parameter]] = {ROOT: []}
    groups.update({name: [] for name, _ in owner_of.values()})
    blocks = dict(owner_of.values())
    for parameter in program.parameters:
        if parameter.trainable and not parameter.buffer:
            groups[owner_of.get(parameter.fqn, (ROOT, ROOT))[0]].append(parameter)
    found = []
    for name, members in groups.items():
        block = blocks.get(name, ROOT)
        zero = program.zero.get(block, 0)
        alike: dict[tuple[tuple[str, ...], tuple[int, ...]], list[Parameter]] = {}
        for parameter in members:
            alike.setdefault((parameter.runtime_axes, parameter.inside), []).append(parameter)
        found += [_holder(name, block, zero, alike[over], prices) for over in sorted(alike)]
    return tuple(found)


def owners(program: Program) -> dict[str, tuple[str, str]]:
    """(call, block) of the parameters that one call alone uses, in the order of the calls."""
    users: dict[str, list[tuple[str, str]]] = {}
    for node in program.graph.nodes:
        if node.target == "param":
            users.setdefault(str(node.attr("fqn")), []).append((ROOT, ROOT))
        elif node.target == "call":
            for index, names in enumerate(_slots(node.attr("params"))):
                for name in dict.fromkeys(names):
                    users.setdefault(name, []).append((f"{node.results[0].name}/{index}", str(node.attr("block"))))
    return {fqn: by[0] for fqn, by in users.items() if len(by) == 1 and by[0][0] != ROOT}


def _slots(params: object) -> Iterator[tuple[str, ...]]:
    for names in params if isinstance(params, tuple) else ():
        yield tuple(map(str, names)) if isinstance(names, tuple) else ()


def _holder(name: str, block: str, zero: int, members: Sequence[Parameter], prices: Prices) -> Holder:
    axes, inside = members[0].runtime_axes, members[0].inside
    total = [sizes(parameter) for parameter in members]
    used, summed = sum(size.used for size in total), sum(size.summed for size in total)
    gathers: list[Move] = []
    scatters: list[Move] = []
    reduces: list[Move] = []
    places = {GATHER: gathers, SCATTER: scatters, REDUCE: reduces}
    for stream, kind, group, payload in moves(axes, inside, used, summed, zero, prices):
        places[stream].append(_move(stream, kind, group, payload, name, prices))
    # read both, write one; the first microbatch's are only brought to the type that they are added up in
    cast = summed + used if axes and summed != used else 0
    return Holder(
        name=name, block=block, zero=zero, fsdp=bool(axes), gathers=tuple(reversed(gathers)), scatters=tuple(scatters),
        reduces=tuple(reduces), accumulates=(_ns(cast, members, prices), _ns(2 * summed + used, members, prices)),
    )  # fmt: skip


def moves(
    axes: Sequence[str], inside: Sequence[int], used: int, summed: int, zero: int, prices: Prices
) -> Iterator[tuple[str, str, Group, int]]:
    """(stream, kind, group, payload) of what FSDP2 does once with parameters of these sizes.

    Gathers are told outermost axis first, as gradients are scattered; they are done the other way round.
    """
    if zero == 0:
        yield from ((REDUCE, "all_reduce", prices.groups[axis], summed) for axis in axes)
        return
    among = inside or tuple(prices.mesh.size(axis) for axis in axes)
    far: list[Group] = []
    for axis, parts in zip(axes, among, strict=True):
        near, across = prices.parts(axis, parts) if inside else (prices.groups[axis], None)
        if across is not None and across.size > 1:
            far.append(across)
        if parts == 1:
            continue
        used, scattered, summed = -(-used // parts), summed, -(-summed // parts)
        yield GATHER, "all_gather", near, used
        yield SCATTER, "reduce_scatter", near, scattered
    yield from ((REDUCE, "all_reduce", group, summed) for group in far)


def _move(stream: str, kind: str, group: Group, payload: int, name: str, prices: Prices) -> Move:
    cause = "gathers" if stream == GATHER else "reductions"
    return Move(
        name=f"{kind} {group.axis}", where=name or "root", ns=prices.move_ns(kind, payload, group),
        category="forward" if stream == GATHER else "grad", cause=cause, stream=stream, link=link(group),
    )  # fmt: skip


def _ns(moved_bytes: int, members: Sequence[Parameter], prices: Prices) -> int:
    """Of an operation that only moves memory."""
    return memory_ns("aten.add_.Tensor", "pointwise", moved_bytes, members[0].type.dtype, prices) if moved_bytes else 0


def memory_ns(target: str, op_class: str, moved_bytes: int, dtype: str, prices: Prices) -> int:
    return prices.compute_ns(
        OpCost(target=target, op_class=op_class, dtype=dtype, flops=0, bytes=moved_bytes, phase="backward")
    )


def updated_bytes(parameter: Parameter, zero: int, optimizer: str, prices: Prices) -> int:
    """What an optimizer's step moves on one device: reads and writes parameter and state, reads the gradient."""
    local, stored = parameter.layout.local_shape(parameter.type.shape), stored_bytes(parameter)
    state = optimizer_state_bytes(optimizer, local, parameter.type.dtype, prices.profile)
    return (2 * (stored + state) + stored) // cut_into(parameter, zero, prices)


def stored_bytes(parameter: Parameter) -> int:
    """On one device, before the runtime cuts it."""
    return math.prod(parameter.layout.local_shape(parameter.type.shape)) * DTYPE_BYTES[parameter.type.dtype]


def cut_into(parameter: Parameter, zero: int, prices: Prices) -> int:
    """Into how many parts the runtime cuts the parameter."""
    if not zero:
        return 1
    return math.prod(parameter.inside or map(prices.mesh.size, parameter.runtime_axes))


def levels(program: Program) -> Mapping[str, int]:
    """ZeRO level of each parameter."""
    owner_of = owners(program)
    return {
        parameter.fqn: program.zero.get(owner_of.get(parameter.fqn, (ROOT, ROOT))[1], 0)
        for parameter in program.parameters
    }
