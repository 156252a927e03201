"""What torch's DTensor offers for an operation: the second oracle of the op table.

DTensor runs the example on one rank of a fake group, for every placement of every operand on an axis of two
devices. What it does without redistributing anything it offers; where it would, it raises here instead. The
private names of torch that this takes stand in this file: ``OpDispatcher.redistribute_local_args`` is the one
place where DTensor changes placements before an operation, and the fake group moves nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dispatch import OpDispatcher
from torch.testing._internal.distributed.fake_pg import FakeStore

from autopar.ir.graph import Node, Value
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.runtime.ops import resolve
from tests.lowered import type_of
from tests.rules.example import Arg, Example
from tests.rules.oracle import case_of
from tests.rules.scaling import drawn_operands, flat, names_of

# Placements of the operands, of the results: "S(0),R -> S(0)"; "-" where an operand is absent.
Offer: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
AXIS = 2
COMBINATIONS = 130  # of placements; with more, Partial operands are left out, then the example


class Redistributed(Exception):
    """DTensor would have moved an operand."""


def text(offer: Offer) -> str:
    return " -> ".join(",".join(part) for part in offer)


@contextmanager
def fake_mesh() -> Iterator[DeviceMesh]:
    """A mesh of two devices of which this process is the first; the second does not exist."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Redistributed

    dist.init_process_group("fake", rank=0, world_size=AXIS, store=FakeStore())
    before = OpDispatcher.__dict__["redistribute_local_args"]
    OpDispatcher.redistribute_local_args = staticmethod(refuse)  # type: ignore[method-assign]
    try:
        yield init_device_mesh("cpu", (AXIS,))
    finally:
        OpDispatcher.redistribute_local_args = before  # type: ignore[method-assign]
        dist.destroy_process_group()


def dtensor_offers(example: Example, mesh: DeviceMesh) -> set[Offer]:
    """All that DTensor runs without moving anything, but for nothing split at all."""
    args = flat(example.operands)
    tensors = [t for item in drawn_operands(example) for t in (item if isinstance(item, tuple) else (item,))]
    node = Node(results=(Value("op", type_of(torch.zeros(()).double())),), target=example.target,
                operands=tuple(names_of(example.operands)), attrs=example.attrs)  # fmt: skip
    call = resolve(node, {}, torch.device("cpu"))
    choices = [_choices(arg, sums=True) for arg in args]
    if math.prod(map(len, choices)) > COMBINATIONS:
        choices = [_choices(arg, sums=False) for arg in args]
    if math.prod(map(len, choices)) > COMBINATIONS:
        return set()
    found: set[Offer] = set()
    for placements in itertools.product(*choices):
        if all(p is None or isinstance(p, Replicate) for p in placements):
            continue
        given = iter([_held(x, p, mesh) for x, p in zip(tensors, placements, strict=True)])
        values = [tuple(next(given) for _ in x) if isinstance(x, tuple) else next(given) for x in example.operands]
        try:
            with torch.no_grad():
                results = call(*values)
        except (Redistributed, RuntimeError, NotImplementedError):
            continue
        if all(isinstance(x, DTensor) for x in results):
            found.add((tuple(map(_name, placements)), tuple(_name(x.placements[0]) for x in results)))
    return found


def _choices(arg: Arg | None, *, sums: bool) -> list[Placement | None]:
    if arg is None:
        return [None]
    split = [Shard(dim) for dim, extent in enumerate(arg.shape) if extent % AXIS == 0]
    partial = [Partial()] if sums and arg.kind not in ("int", "bool") else []
    return [Replicate(), *split, *partial]


def _held(tensor: Any, placement: Placement | None, mesh: DeviceMesh) -> DTensor | None:
    if placement is None:
        return None
    part = tensor.chunk(AXIS, placement.dim)[0].contiguous() if isinstance(placement, Shard) else tensor
    return DTensor.from_local(part, mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.stride())


def _name(placement: Placement | None) -> str:
    if isinstance(placement, Partial):  # masked sums of embeddings among them
        return f"P({placement.reduce_op})"
    if isinstance(placement, Shard):
        return f"S({placement.dim})"
    return "-" if placement is None else "R" if isinstance(placement, Replicate) else str(placement)


def our_offers(example: Example) -> set[Offer]:
    """The placements of our strategies; a replicated operand is R whatever becomes of its gradient."""
    case = case_of(example, Mesh((("x", AXIS),)))
    return {
        (tuple(map(_ours, found.operands)), tuple(map(_ours, found.results)))
        for found in case.strategies()
    }  # fmt: skip


def _ours(layout: Layout | None) -> str:
    return "-" if layout is None else layout.text().removeprefix("x:").removesuffix("*")
