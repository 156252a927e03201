"""Matrix products as ``aten.linear.default(x, w)`` and ``aten.matmul.default(x, y)``, biases added after.

A bias added after a contraction must not be added by every device that holds a part of it, so it is an
operation of its own. A product with a transposed matrix is a linear.
"""

from __future__ import annotations

from autopar.ir.graph import Node
from autopar.ir.types import TensorType
from autopar.passes.canonical_arith import scaled
from autopar.passes.canonical_emit import Emitter
from autopar.passes.canonical_views import Rule, ints, operand, reshape


def product(em: Emitter, x: str, y: str, type_: TensorType) -> str:
    """``x @ y``; a vector is a matrix of one row or column."""
    left, right = em.types[x].shape, em.types[y].shape
    if len(left) == 1 or len(right) == 1:
        rows = (1,) if len(left) == 1 else left[-2:-1]
        columns = (1,) if len(right) == 1 else right[-1:]
        lead = left[:-2] if len(left) > len(right) else right[:-2]
        x = reshape(em, x, (1, *left)) if len(left) == 1 else x
        y = reshape(em, y, (*right, 1)) if len(right) == 1 else y
        whole = em.op("aten.matmul.default", x, y, type=TensorType(type_.dtype, (*lead, *rows, *columns)))
        return reshape(em, whole, type_.shape)
    turned = em.made_by(y, "aten.permute.default")
    if turned is not None and ints(turned.attr("dims")) == (1, 0) and len(em.types[x].shape) > 1:
        return em.op("aten.linear.default", x, operand(turned), type=type_)
    return em.op("aten.matmul.default", x, y, type=type_)


def _linear(em: Emitter, node: Node) -> tuple[str, ...]:
    x, w = operand(node), operand(node, 1)
    y = em.op("aten.linear.default", x, w, type=node.result.type)
    if len(node.operands) == 3:
        y = em.op("aten.add.Tensor", y, node.operands[2], type=node.result.type)
    return (y,)


def _product(em: Emitter, node: Node) -> tuple[str, ...]:
    return (product(em, operand(node), operand(node, 1), node.result.type),)


def _product_and_sum(em: Emitter, node: Node) -> tuple[str, ...]:
    """``beta * bias + alpha * (x @ y)``."""
    bias, x, y = operand(node), operand(node, 1), operand(node, 2)
    type_ = node.result.type
    made = scaled(em, product(em, x, y, type_), node.attr("alpha", 1))
    if node.attr("beta", 1) == 0:
        return (made,)
    return (em.op("aten.add.Tensor", made, scaled(em, bias, node.attr("beta", 1)), type=type_),)


RULES: dict[str, Rule] = {
    "aten.linear.default": _linear,
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.matmul.default": _product,
    "aten.mv.default": _product,
    "aten.dot.default": _product,
    "aten.vdot.default": _product,
    "aten.addmv.default": _product_and_sum,
    "aten.addmm.default": _product_and_sum,
    "aten.baddbmm.default": _product_and_sum,
}
