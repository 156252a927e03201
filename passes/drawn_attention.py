"""Attention with dropout: written out as products, softmax and dropout, or fused with a seed a device."""

from __future__ import annotations

import math

from autopar.ir.graph import Node
from autopar.ir.types import TensorType
from autopar.passes.canonical_emit import Emitter
from autopar.passes.canonical_views import operand, permute, reshape

ATTENTION = "aten.scaled_dot_product_attention.default"


def written_out(em: Emitter, node: Node, rng: str) -> tuple[str, ...]:
    """softmax(q · kᵀ · scale + mask), dropped out, times v. Grouped heads become a dim of their own."""
    q, k, v = (operand(node, at) for at in range(3))
    mask = node.operands[3] if len(node.operands) > 3 else None
    shape, keys = em.types[q].shape, em.types[k].shape
    lead, (rows, width) = shape[:-2], shape[-2:]
    if lead and lead[-1] != keys[-3]:
        groups = lead[-1] // keys[-3]
        lead = (*lead[:-1], keys[-3], groups)
        q = reshape(em, q, (*lead, rows, width))
        k, v = (reshape(em, x, (*lead[:-1], 1, *em.types[x].shape[-2:])) for x in (k, v))
        if isinstance(mask, str) and len(have := em.types[mask].shape) > 2:
            heads = (keys[-3], groups) if have[-3] > 1 else (1, 1)
            mask = reshape(em, mask, (*have[:-3], *heads, *have[-2:]))
    dtype = em.types[q].dtype
    scores_type = TensorType(dtype, (*lead, rows, keys[-2]))
    scale = node.attr("scale")
    scale = 1 / math.sqrt(width) if not isinstance(scale, (int, float)) else scale
    q = em.op("aten.mul.Tensor", q, type=em.types[q], other=scale)
    rank = len(em.types[k].shape)
    turned = permute(em, k, (*range(rank - 2), rank - 1, rank - 2))
    scores = em.op("aten.matmul.default", q, turned, type=scores_type)
    if node.attr("is_causal"):
        mask = _causal(em, rows, keys[-2])
    weights = _softmax(em, scores, mask, scores_type)
    p = node.attr("dropout_p")
    dropped = em.op("autopar.dropout", weights, rng, type=scores_type, p=p)
    found = em.op("aten.matmul.default", dropped, v, type=TensorType(dtype, (*lead, rows, em.types[v].shape[-1])))
    return (reshape(em, found, node.result.type.shape),)


def with_fused_dropout(em: Emitter, node: Node, rng: str) -> tuple[str, ...]:
    """The same operation, its dropout seeded by ``rng``."""
    given = (*node.operands, *(None for _ in range(4 - len(node.operands))))
    return em.raw("autopar.sdpa_dropout", (*given, rng), dict(node.attrs), (node.result.type,))


def _causal(em: Emitter, rows: int, columns: int) -> str:
    def numbers(count: int) -> str:
        type_ = TensorType("i64", (count,))
        return em.op("aten.arange.start_step", type=type_, start=0, end=count, step=1, dtype="i64")

    row = reshape(em, numbers(rows), (rows, 1))
    return em.op("aten.le.Tensor", numbers(columns), row, type=TensorType("bool", (rows, columns)))


def _softmax(em: Emitter, scores: str, mask: object, type_: TensorType) -> str:
    """Rows that a mask leaves nothing of are zero, as in torch's attention."""
    if not isinstance(mask, str):
        return em.op("aten.softmax.int", scores, type=type_, dim=len(type_.shape) - 1)
    if em.types[mask].dtype == "bool":
        scores = em.op("aten.where.ScalarOther", mask, scores, type=type_, other=-math.inf)
    else:
        scores = em.op("aten.add.Tensor", scores, mask, type=type_)
    return em.op("aten._safe_softmax.default", scores, type=type_, dim=len(type_.shape) - 1)
