"""Which operations of torch are views and casts, and which of the canonical ones each becomes."""

from __future__ import annotations

import math

from autopar.ir.graph import Node
from autopar.passes.canonical_emit import DETACH, Emitter
from autopar.passes.canonical_views import (
    Rule,
    cast,
    cut,
    expand,
    integer,
    ints,
    operand,
    permute,
    reshape,
    split,
)


def same(em: Emitter, node: Node) -> tuple[str, ...]:
    return (operand(node),)


def _cast(em: Emitter, node: Node) -> tuple[str, ...]:
    return (cast(em, operand(node), node.result.type.dtype),)


def _as_complex(em: Emitter, node: Node) -> tuple[str, ...]:
    """Not torch's operation, which asks for pairs that lie side by side in memory."""
    return (em.op("autopar.as_complex", operand(node), type=node.result.type),)


def _detach(em: Emitter, node: Node) -> tuple[str, ...]:
    x = operand(node)
    if not em.learns(x) or not em.types[x].has_gradient or em.made_by(x, DETACH) is not None:
        return (x,)
    return (em.op(DETACH, x, type=em.types[x]),)


def _reshape(em: Emitter, node: Node) -> tuple[str, ...]:
    return (reshape(em, operand(node), node.result.type.shape),)


def _expand(em: Emitter, node: Node) -> tuple[str, ...]:
    return (expand(em, operand(node), node.result.type.shape),)


def _broadcast(em: Emitter, node: Node) -> tuple[str, ...]:
    """Tensors made to have one shape: each is an expand, or itself."""
    pieces = node.operands[0]
    assert isinstance(pieces, tuple)
    return tuple(
        expand(em, piece, value.type.shape)
        for piece, value in zip(pieces, node.results, strict=True)
        if piece is not None
    )


def _permute(em: Emitter, node: Node) -> tuple[str, ...]:
    rank = len(node.result.type.shape)
    return (permute(em, operand(node), tuple(dim % rank for dim in ints(node.attr("dims")))),)


def _transpose(em: Emitter, node: Node) -> tuple[str, ...]:
    rank = len(node.result.type.shape)
    dims = list(range(rank))
    a = node.attr("dim0", node.attr("axis0", -2))
    b = node.attr("dim1", node.attr("axis1", -1))
    if rank > 1:
        a, b = integer(a) % rank, integer(b) % rank
        dims[a], dims[b] = dims[b], dims[a]
    return (permute(em, operand(node), tuple(dims)),)


def _reverse(em: Emitter, node: Node) -> tuple[str, ...]:
    return (permute(em, operand(node), tuple(reversed(range(len(node.result.type.shape))))),)


def _movedim(em: Emitter, node: Node) -> tuple[str, ...]:
    rank = len(node.result.type.shape)
    source = [dim % rank for dim in ints(node.attr("source"))]
    place = dict(zip((dim % rank for dim in ints(node.attr("destination"))), source, strict=True))
    rest = iter([dim for dim in range(rank) if dim not in source])
    return (
        permute(em, operand(node), tuple(place[at] if at in place else next(rest) for at in range(rank))),
    )


def _slice(em: Emitter, node: Node) -> tuple[str, ...]:
    x = operand(node)
    shape = em.types[x].shape
    dim = integer(node.attr("dim", 0)) % len(shape)
    start, end = node.attr("start"), node.attr("end")
    first = _clamped(0 if start is None else integer(start), shape[dim])
    last = max(first, _clamped(shape[dim] if end is None else integer(end), shape[dim]))
    return (cut(em, x, dim, first, last, integer(node.attr("step", 1))),)


def _narrow(em: Emitter, node: Node) -> tuple[str, ...]:
    x = operand(node)
    shape = em.types[x].shape
    dim = integer(node.attr("dim")) % len(shape)
    start = _clamped(integer(node.attr("start")), shape[dim])
    return (cut(em, x, dim, start, start + integer(node.attr("length"))),)


def _select(em: Emitter, node: Node) -> tuple[str, ...]:
    x = operand(node)
    shape = em.types[x].shape
    dim = integer(node.attr("dim")) % len(shape)
    at = integer(node.attr("index")) % shape[dim]
    return (reshape(em, cut(em, x, dim, at, at + 1), node.result.type.shape),)


def _clamped(at: int, extent: int) -> int:
    return min(max(at + extent if at < 0 else at, 0), extent)


def _split(em: Emitter, node: Node) -> tuple[str, ...]:
    x = operand(node)
    dim = integer(node.attr("dim", 0)) % len(em.types[x].shape)
    return split(em, x, dim, tuple(value.type.shape[dim] for value in node.results))


def _unbind(em: Emitter, node: Node) -> tuple[str, ...]:
    x = operand(node)
    dim = integer(node.attr("dim", 0)) % len(em.types[x].shape)
    pieces = split(em, x, dim, (1,) * len(node.results))
    return tuple(
        reshape(em, piece, value.type.shape) for piece, value in zip(pieces, node.results, strict=True)
    )


def _stack(em: Emitter, node: Node) -> tuple[str, ...]:
    shape = node.result.type.shape
    dim = integer(node.attr("dim", 0)) % len(shape)
    pieces = node.operands[0]
    assert isinstance(pieces, tuple)
    one = (*shape[:dim], 1, *shape[dim + 1 :])
    whole = tuple(reshape(em, piece, one) for piece in pieces if piece is not None)
    return (em.op("aten.cat.default", whole, type=node.result.type, dim=dim),)


def _cat(em: Emitter, node: Node) -> tuple[str, ...]:
    pieces = node.operands[0]
    assert isinstance(pieces, tuple)
    shape = node.result.type.shape
    dim = integer(node.attr("dim", 0)) % len(shape)
    kept = tuple(p for p in pieces if p is not None and em.types[p].shape != (0,)) or pieces
    if len(kept) == 1 and isinstance(kept[0], str) and em.types[kept[0]] == node.result.type:
        return (kept[0],)
    return (em.op("aten.cat.default", kept, type=node.result.type, dim=dim),)


def _repeat(em: Emitter, node: Node) -> tuple[str, ...]:
    """``repeat``: each dim n becomes (times, n), is expanded there and flattened."""
    x, shape = operand(node), node.result.type.shape
    have = (1,) * (len(shape) - len(em.types[x].shape)) + em.types[x].shape
    times = tuple(full // size if size else 1 for full, size in zip(shape, have, strict=True))
    ones = tuple(size for t, n in zip(times, have, strict=True) for size in ((1, n) if t != 1 else (n,)))
    full = tuple(size for t, n in zip(times, have, strict=True) for size in ((t, n) if t != 1 else (n,)))
    return (reshape(em, expand(em, reshape(em, x, ones), full), shape),)


def _repeat_interleave(em: Emitter, node: Node) -> tuple[str, ...]:
    """Each dim n becomes (n, times), is expanded there and flattened."""
    x, shape = operand(node), node.result.type.shape
    times = integer(node.attr("repeats"))
    have = em.types[x].shape
    if node.attr("dim") is None:
        have = (math.prod(have),)
    dim = integer(node.attr("dim", 0)) % len(have)
    whole = expand(
        em,
        reshape(em, x, (*have[: dim + 1], 1, *have[dim + 1 :])),
        (*have[: dim + 1], times, *have[dim + 1 :]),
    )
    return (reshape(em, whole, shape),)


def _rules(rule: Rule, *names: str) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names}


def _slice_scatter(em: Emitter, node: Node) -> tuple[str, ...]:
    """A part of a dim replaced: what is before it, the new part, what is after it."""
    x, new = operand(node), operand(node, 1)
    type_ = node.result.type
    dim = integer(node.attr("dim", 0)) % len(type_.shape)
    size, start, end = type_.shape[dim], node.attr("start"), node.attr("end")
    if node.attr("step", 1) != 1:
        return em.emit(node.target, node.operands, dict(node.attrs), (type_,))
    first = _clamped(0 if start is None else integer(start), size)
    return (
        _replaced(em, x, new, dim, first, max(first, _clamped(size if end is None else integer(end), size))),
    )


def _select_scatter(em: Emitter, node: Node) -> tuple[str, ...]:
    shape = node.result.type.shape
    dim = integer(node.attr("dim")) % len(shape)
    at = integer(node.attr("index")) % shape[dim]
    new = reshape(em, operand(node, 1), (*shape[:dim], 1, *shape[dim + 1 :]))
    return (_replaced(em, operand(node), new, dim, at, at + 1),)


def _replaced(em: Emitter, x: str, new: str, dim: int, start: int, end: int) -> str:
    type_ = em.types[x]
    new = cast(em, new, type_.dtype)
    size = type_.shape[dim]
    parts = [(cut(em, x, dim, 0, start), start), (new, end - start), (cut(em, x, dim, end, size), size - end)]
    kept = tuple(part for part, length in parts if length)
    return kept[0] if len(kept) == 1 else em.op("aten.cat.default", kept, type=type_, dim=dim)


RULES: dict[str, Rule] = {
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    **_rules(same, "alias.default", "contiguous.default", "clone.default", "lift_fresh.default"),
    **_rules(
        same, "lift_fresh_copy.default", "resolve_conj.default", "resolve_neg.default", "positive.default"
    ),
    **_rules(_detach, "detach.default", "detach_copy.default"),
    DETACH: _detach,
    **_rules(_as_complex, "view_as_complex.default"),
    **_rules(
        _cast, "to.dtype", "to.device", "to.dtype_layout", "to.other", "_to_copy.default", "type_as.default"
    ),
    **_rules(_cast, "float.default", "_autocast_to_full_precision.default"),
    **_rules(_reshape, "view.default", "reshape.default", "_unsafe_view.default", "view_as.default"),
    **_rules(
        _reshape, "reshape_as.default", "unsqueeze.default", "unsqueeze_copy.default", "squeeze.default",
        "squeeze.dim", "squeeze.dims",
    ),
    **_rules(_reshape, "flatten.using_ints", "unflatten.int", "ravel.default", "view_copy.default"),
    **_rules(_expand, "expand.default", "expand_as.default", "broadcast_to.default", "expand_copy.default"),
    **_rules(_broadcast, "broadcast_tensors.default"),
    **_rules(_permute, "permute.default"),
    **_rules(_transpose, "transpose.int", "t.default", "swapaxes.default", "swapdims.default", "mT.default"),
    **_rules(_reverse, "numpy_T.default"),
    **_rules(_movedim, "movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist"),
    **_rules(_slice, "slice.Tensor"),
    **_rules(_narrow, "narrow.default"),
    **_rules(_select, "select.int"),
    **_rules(
        _split, "split.Tensor", "split.sizes", "split.default", "split_with_sizes.default", "chunk.default"
    ),
    **_rules(
        _split, "unsafe_split.Tensor", "unsafe_chunk.default", "tensor_split.sections", "tensor_split.indices"
    ),
    **_rules(_unbind, "unbind.int"),
    **_rules(_stack, "stack.default"),
    **_rules(_cat, "cat.default", "concat.default", "concatenate.default"),
    **_rules(_repeat, "repeat.default", "tile.default"),
    **_rules(_repeat_interleave, "repeat_interleave.self_int"),
}
