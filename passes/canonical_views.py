"""Views as few operations: reshape, permute, expand, slice, split_with_sizes; and casts.

The functions here make a view of a value and see to it that chains of the same kind become one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autopar.ir.graph import Node
from autopar.ir.types import TensorType
from autopar.passes.canonical_emit import Emitter

Rule = Callable[[Emitter, Node], tuple[str, ...]]
"""Emit something equal to the node, whose operands are values of the emitter; return its results."""

Shape = tuple[int, ...]


def ints(value: object) -> Shape:
    """An attribute that is a size or a list of sizes."""
    if isinstance(value, int):
        return (value,)
    assert isinstance(value, tuple)
    return tuple(item for item in value if isinstance(item, int))


def integer(value: object) -> int:
    assert isinstance(value, int), value
    return value


def operand(node: Node, at: int = 0) -> str:
    name = node.operands[at]
    assert isinstance(name, str), node
    return name


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def reshape(em: Emitter, x: str, shape: Shape) -> str:
    """``x`` in ``shape``. A reshape of a reshape is one; a split of dims goes below a permute."""
    while (inner := em.made_by(x, "aten.reshape.default")) is not None:
        x = operand(inner)
    have = em.types[x]
    if have.shape == shape:
        return x
    turned = em.made_by(x, "aten.permute.default")
    if turned is not None and em.made_by(operand(turned), "aten.reshape.default") is not None:
        groups = _split_dims(have.shape, shape)
        if groups is not None:
            return _reshape_below(em, operand(turned), ints(turned.attr("dims")), groups)
    return em.op("aten.reshape.default", x, type=TensorType(have.dtype, shape), shape=shape)


def _split_dims(have: Shape, shape: Shape) -> list[Shape] | None:
    """What each dim of ``have`` is split into to give ``shape``; None unless some dim is truly split."""
    rest, groups = list(shape), []
    for size in have:
        group: list[int] = []
        while rest and math.prod(group) * rest[0] <= size and (not group or math.prod(group) < size):
            group.append(rest.pop(0))
        if math.prod(group) != size:
            return None
        groups.append(tuple(group))
    truly = any(sum(size != 1 for size in group) > 1 for group in groups)
    return groups if truly and not rest and 0 not in have else None


def _reshape_below(em: Emitter, x: str, dims: Shape, groups: list[Shape]) -> str:
    """A permute whose result is split into ``groups``, as a permute of ``x`` with its dims split."""
    split_of = {dim: groups[at] for at, dim in enumerate(dims)}
    below: list[int] = []
    places: dict[int, range] = {}
    for dim in range(len(dims)):
        places[dim] = range(len(below), len(below) + len(split_of[dim]))
        below += split_of[dim]
    return permute(em, reshape(em, x, tuple(below)), tuple(at for dim in dims for at in places[dim]))


def permute(em: Emitter, x: str, dims: Shape) -> str:
    """Dim i of the result is dim ``dims[i]`` of ``x``. Dims of size 1 are no part of a permute."""
    if (inner := em.made_by(x, "aten.permute.default")) is not None:
        x, before = operand(inner), ints(inner.attr("dims"))
        dims = tuple(before[dim] for dim in dims)
    have = em.types[x]
    shape = tuple(have.shape[dim] for dim in dims)
    long = [dim for dim, size in enumerate(have.shape) if size != 1]
    moved = [dim for dim in dims if dim in long]
    if moved == long:
        return reshape(em, x, shape)
    if len(long) < len(dims):
        x = reshape(em, x, tuple(have.shape[dim] for dim in long))
        return reshape(em, permute(em, x, tuple(long.index(dim) for dim in moved)), shape)
    return em.op("aten.permute.default", x, type=TensorType(have.dtype, shape), dims=dims)


def expand(em: Emitter, x: str, shape: Shape) -> str:
    """``x`` broadcast to ``shape``: new leading dims are made by a reshape first, so that ranks are equal."""
    have = em.types[x].shape
    x = reshape(em, x, (1,) * (len(shape) - len(have)) + have)
    if (inner := em.made_by(x, "aten.expand.default")) is not None:
        x = operand(inner)
    if em.types[x].shape == shape:
        return x
    return em.op("aten.expand.default", x, type=TensorType(em.types[x].dtype, shape), size=shape)


def cut(em: Emitter, x: str, dim: int, start: int, end: int, step: int = 1) -> str:
    """Elements ``start, start + step, …`` below ``end`` of a dim; all of them: ``x`` itself."""
    have = em.types[x]
    extent = have.shape[dim]
    length = max(0, math.ceil((end - start) / step))
    if (start, step, length) == (0, 1, extent):
        return x
    turned = em.made_by(x, "aten.permute.default")
    if (
        turned is not None and length == 1
    ):  # one element of a dim: taken before the permute, which then gets less
        dims = ints(turned.attr("dims"))
        return permute(em, cut(em, operand(turned), dims[dim], start, end, step), dims)
    type_ = TensorType(have.dtype, (*have.shape[:dim], length, *have.shape[dim + 1 :]))
    given = {} if step == 1 else {"step": step}
    return em.op("aten.slice.Tensor", x, type=type_, dim=dim, start=start, end=end, **given)


def split(em: Emitter, x: str, dim: int, sizes: Shape) -> tuple[str, ...]:
    """Consecutive pieces of a dim."""
    have = em.types[x]
    if len(sizes) == 1:
        return (x,)
    types = tuple(TensorType(have.dtype, (*have.shape[:dim], size, *have.shape[dim + 1 :])) for size in sizes)
    return em.emit("aten.split_with_sizes.default", (x,), {"split_sizes": sizes, "dim": dim}, types)


def cast(em: Emitter, x: str, dtype: str) -> str:
    have = em.types[x]
    if have.dtype == dtype:
        return x
    return em.op("aten.to.dtype", x, type=TensorType(dtype, have.shape), dtype=dtype)
