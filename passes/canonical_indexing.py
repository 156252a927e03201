"""Indexing in few spellings: a constant index is a slice, a mask a fill, and rows that pick their own a ``pick``.

    aten.index.Tensor (x, (index or none, …))   any other advanced indexing
    autopar.pick (x, index) {lead}              ``x[arange(b)…, index]``: the leading dims of both are shared
"""

from __future__ import annotations

from autopar.ir.graph import Node
from autopar.ir.types import TensorType
from autopar.passes.canonical_arith import plain
from autopar.passes.canonical_emit import Emitter
from autopar.passes.canonical_views import Rule, Shape, broadcast, cut, expand, integer, operand, reshape


def _indices(node: Node) -> tuple[str | None, ...]:
    given = node.operands[1]
    assert isinstance(given, tuple)
    return given


def _index(em: Emitter, node: Node) -> tuple[str, ...]:
    x, indices = operand(node), _indices(node)
    used = [(dim, name) for dim, name in enumerate(indices) if name is not None]
    if len(used) == 1:
        dim, name = used[0]
        constant = em.made_by(name, "aten.full.default")
        if constant is not None and em.types[name].shape in ((), (1,)) and em.types[name].dtype != "bool":
            at = integer(constant.attr("fill_value")) % em.types[x].shape[dim]
            return (reshape(em, cut(em, x, dim, at, at + 1), node.result.type.shape),)
    found = _picked(em, x, indices, node.result.type)
    return plain(em, node) if found is None else (found,)


def _picked(em: Emitter, x: str, indices: tuple[str | None, ...], type_: TensorType) -> str | None:
    """Leading indices that count their own dim, each along another dim of the indices, then one of any kind."""
    names = [name for name in indices if name is not None]
    lead = len(names) - 1
    if lead < 1 or len(names) != len(indices):
        return None
    shape = broadcast(*(em.types[name].shape for name in names))
    rows = em.types[x].shape[:lead]
    if len(shape) < lead or shape[:lead] != rows:
        return None
    if not all(_counts(em, name, dim, shape) for dim, name in enumerate(names[:-1])):
        return None
    last = names[-1]
    if _made_of_counts(em, last):  # what is known of such indices decides about masks: see passes/masks.py
        return None
    have = em.types[last].shape
    index = expand(em, last, (*rows, *((1,) * (len(shape) - len(have)) + have)[lead:]))
    return em.op("autopar.pick", x, index, type=type_, lead=lead)


def _counts(em: Emitter, name: str, dim: int, shape: Shape) -> bool:
    """Whether ``name``, broadcast to ``shape``, is the index along ``dim``."""
    have = em.types[name].shape
    wanted = tuple(extent if at == dim else 1 for at, extent in enumerate(shape))
    if (1,) * (len(shape) - len(have)) + have != wanted:
        return False
    node = em.producer(name)
    while node is not None and node.target == "aten.reshape.default":
        node = em.producer(operand(node))
    return (
        node is not None and node.target == "aten.arange.start_step"
        and (node.attr("start"), node.attr("end"), node.attr("step")) == (0, shape[dim], 1)
    )  # fmt: skip


def _made_of_counts(em: Emitter, name: str) -> bool:
    """Whether a value is views and sums of an ``arange``."""
    node = em.producer(name)
    while node is not None and len(node.operands) == 1 and isinstance(node.operands[0], str):
        node = em.producer(node.operands[0])
    return node is not None and node.target == "aten.arange.start_step"


def _index_put(em: Emitter, node: Node) -> tuple[str, ...]:
    """A mask of leading dims that takes one number is a fill."""
    x, indices, values = operand(node), _indices(node), operand(node, 2)
    mask, have = indices[0], em.types[x]
    if len(indices) == 1 and mask is not None and em.types[mask].dtype == "bool" and not node.attr("accumulate"):
        kind = em.types[mask].shape
        if kind == have.shape[: len(kind)] and em.types[values].shape in ((), (1,)):
            wide = reshape(em, mask, (*kind, *(1,) * (len(have.shape) - len(kind))))
            number = em.made_by(values, "aten.full.default")
            if number is not None:
                value = number.attr("fill_value")
                return (em.op("aten.masked_fill.Scalar", x, wide, type=have, value=value),)
            return (em.op("aten.where.self", wide, reshape(em, values, ()), x, type=have),)
    return plain(em, node)


def _with_dim(em: Emitter, node: Node) -> tuple[str, ...]:
    """Operations along the last dim if none is named."""
    last = len(em.types[operand(node)].shape) - 1
    return plain(em, node.with_attrs(dim=node.attr("dim", max(last, 0))))


RULES: dict[str, Rule] = {
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    **{f"aten.{name}.default": _with_dim for name in ("kthvalue", "mode", "topk", "sort", "argsort")},
    **{f"aten.{name}.stable": _with_dim for name in ("sort", "argsort")},
}
