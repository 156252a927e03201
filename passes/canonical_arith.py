"""Pointwise operations, reductions and constant tensors in one spelling each."""

from __future__ import annotations

import math

from autopar.ir.graph import Node
from autopar.ir.types import Attr, TensorType
from autopar.passes.canonical_emit import Emitter, trimmed
from autopar.passes.canonical_views import Rule, broadcast, cast, ints, operand, reshape

_HALF = ("bf16", "f16")


def scaled(em: Emitter, x: str, factor: Attr, dtype: str = "") -> str:
    """``x`` times a number, in element type ``dtype`` if that is given and there is anything to multiply."""
    if factor is None or factor == 1:
        return x
    x = cast(em, x, dtype) if dtype else x
    return em.op("aten.mul.Tensor", x, type=em.types[x], other=factor)


def total(em: Emitter, x: str, dims: tuple[int, ...], keepdim: bool, dtype: str) -> str:
    """The sum over ``dims``, in element type ``dtype``."""
    have = em.types[x]
    shape = tuple(1 if at in dims else size for at, size in enumerate(have.shape) if keepdim or at not in dims)
    if have.is_float and all(have.shape[dim] == 1 for dim in dims):
        return cast(em, reshape(em, x, shape), dtype)
    given: dict[str, Attr] = {"dim": dims}
    if keepdim:
        given["keepdim"] = True
    if dtype != (have.dtype if have.is_float else "i64"):
        given["dtype"] = dtype
    return em.op("aten.sum.dim_IntList", x, type=TensorType(dtype, shape), **given)


def mean(em: Emitter, x: str, dims: tuple[int, ...], keepdim: bool, dtype: str) -> str:
    """The sum over ``dims`` divided by their number; half precision is summed in f32 as torch does."""
    count = math.prod(em.types[x].shape[dim] for dim in dims)
    inner = "f32" if dtype in _HALF else dtype
    summed = total(em, x, dims, keepdim, inner)
    if count != 1:
        summed = em.op("aten.div.Tensor", summed, type=em.types[summed], other=count)
    return cast(em, summed, dtype)


def plain(em: Emitter, node: Node) -> tuple[str, ...]:
    """The node as it is, with dims counted from the front."""
    attrs = dict(node.attrs)
    first = node.operands[0] if node.operands else None
    name = first[0] if isinstance(first, tuple) and first else first
    rank = len(em.types[name].shape) if isinstance(name, str) else 0
    if rank:
        for key in ("dim", "dims"):
            value = attrs.get(key)
            if isinstance(value, bool) or value is None:
                continue
            if isinstance(value, int):
                attrs[key] = value % rank
            elif isinstance(value, tuple):
                attrs[key] = tuple(dim % rank for dim in ints(value))
    return em.emit(node.target, node.operands, attrs, tuple(value.type for value in node.results))


def _renamed(target: str, *dropped: str) -> Rule:
    """The same operation under the name ``target``, without attributes that change nothing."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        attrs = {name: value for name, value in node.attrs if name not in dropped}
        return plain(em, Node(results=node.results, target=target, operands=node.operands, attrs=tuple(attrs.items())))

    return rule


def _number_last(node: Node) -> tuple[tuple[str | None, ...], Attr]:
    """Operands and number of a commutative operation, the number second."""
    number = node.attr("other", node.attr("self"))
    names = [name for name in node.operands if isinstance(name, str)]
    return tuple(names), number


def _add(em: Emitter, node: Node) -> tuple[str, ...]:
    names, number = _number_last(node)
    alpha = node.attr("alpha", 1)
    type_ = node.result.type
    if len(names) == 1:
        if node.operands[0] is None:
            names = (scaled(em, operand(node, -1), alpha, type_.dtype),)
        elif isinstance(number, (int, float)) and isinstance(alpha, (int, float)):
            number = number * alpha if alpha != 1 else number
        if number == 0 and em.types[str(names[0])] == type_:
            return (str(names[0]),)
        return (em.op("aten.add.Tensor", *names, type=type_, other=number),)
    x, y = operand(node), operand(node, 1)
    return (em.op("aten.add.Tensor", x, scaled(em, y, alpha, type_.dtype), type=type_),)


def _sub(em: Emitter, node: Node) -> tuple[str, ...]:
    type_, alpha = node.result.type, node.attr("alpha", 1)
    if node.operands[0] is None:
        return (_from_number(em, operand(node, 1), node.attr("self"), alpha, type_),)
    x = operand(node)
    if len(node.operands) > 1:
        return (em.op("aten.sub.Tensor", x, scaled(em, operand(node, 1), alpha, type_.dtype), type=type_),)
    number = node.attr("other")
    if isinstance(number, (int, float)) and isinstance(alpha, (int, float)) and alpha != 1:
        number = number * alpha
    if number == 0 and em.types[x] == type_:
        return (x,)
    return (em.op("aten.sub.Tensor", x, type=type_, other=number),)


def _rsub(em: Emitter, node: Node) -> tuple[str, ...]:
    type_, alpha = node.result.type, node.attr("alpha", 1)
    if len(node.operands) > 1:
        return (em.op("aten.sub.Tensor", operand(node, 1), scaled(em, operand(node), alpha, type_.dtype), type=type_),)
    return (_from_number(em, operand(node), node.attr("other"), alpha, type_),)


def _from_number(em: Emitter, x: str, number: Attr, alpha: Attr, type_: TensorType) -> str:
    """``number - alpha * x`` as the number added to the negative."""
    x = scaled(em, x, alpha, type_.dtype)
    negative = em.op("aten.neg.default", x, type=em.types[x])
    return em.op("aten.add.Tensor", negative, type=type_, other=number)


def _mul(em: Emitter, node: Node) -> tuple[str, ...]:
    names, number = _number_last(node)
    type_ = node.result.type
    if len(names) == 1 and number == 1 and em.types[str(names[0])] == type_:
        return (str(names[0]),)
    given = {} if len(names) == 2 else {"other": number}
    return (em.op("aten.mul.Tensor", *names, type=type_, **given),)


def _div(em: Emitter, node: Node) -> tuple[str, ...]:
    if len(node.operands) == 1 and node.attr("other") == 1 and em.types[operand(node)] == node.result.type:
        return (operand(node),)
    return (em.op("aten.div.Tensor", *node.operands, type=node.result.type, **dict(node.attrs)),)


def _logical(target: str, bitwise: str) -> Rule:
    """Bitwise operations on truth values are logical ones."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        names = trimmed(node.operands)
        booleans = all(isinstance(name, str) and em.types[name].dtype == "bool" for name in names)
        chosen = target if booleans and not node.attrs else bitwise
        return (em.op(chosen, *names, type=node.result.type, **dict(node.attrs)),)

    return rule


def _dropout(em: Emitter, node: Node) -> tuple[str, ...]:
    if node.attr("p", 0.5) == 0 or not node.attr("train", True):
        return (operand(node),)
    return plain(em, node)


def _softmax(target: str) -> Rule:
    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        x = operand(node)
        if node.result.type.is_float:
            x = cast(em, x, node.result.type.dtype)
        dim = node.attr("dim", -1)
        rank = max(1, len(node.result.type.shape))
        return (em.op(target, x, type=node.result.type, dim=dim % rank if isinstance(dim, int) else dim),)

    return rule


def _dims(em: Emitter, node: Node) -> tuple[int, ...]:
    rank = len(em.types[operand(node)].shape)
    given = node.attr("dim")
    chosen = ints(given) if given is not None else ()
    return tuple(sorted(dim % rank for dim in chosen)) if chosen and rank else tuple(range(rank))


def _sum(em: Emitter, node: Node) -> tuple[str, ...]:
    return (total(em, operand(node), _dims(em, node), bool(node.attr("keepdim", False)), node.result.type.dtype),)


def _mean(em: Emitter, node: Node) -> tuple[str, ...]:
    dtype = node.result.type.dtype
    x = operand(node) if node.attr("dtype") is None else cast(em, operand(node), dtype)
    return (mean(em, x, _dims(em, node), bool(node.attr("keepdim", False)), dtype),)


def full(em: Emitter, type_: TensorType, number: Attr) -> str:
    return em.op("aten.full.default", type=type_, size=type_.shape, fill_value=number, dtype=type_.dtype)


def _full(value: int | str) -> Rule:
    """A constant tensor; ``value`` is the number or the attribute that holds it."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        number = node.attr(value) if isinstance(value, str) else value
        if number is None:
            return plain(em, node)
        if node.result.type.dtype == "bool":
            number = bool(number)
        elif node.result.type.is_float and isinstance(number, int):
            number = float(number)
        return (full(em, node.result.type, number),)

    return rule


def _arange(em: Emitter, node: Node) -> tuple[str, ...]:
    type_, step = node.result.type, node.attr("step", 1)
    start = node.attr("start", 0)
    return (
        em.op(
            "aten.arange.start_step",
            type=type_,
            start=start,
            end=node.attr("end"),
            step=step,
            dtype=type_.dtype,
        ),
    )


def _masked_fill(em: Emitter, node: Node) -> tuple[str, ...]:
    """A fill with a tensor that is one number is a fill with that number."""
    number = em.made_by(node.operands[2], "aten.full.default") if len(node.operands) > 2 else None
    x, mask = operand(node), operand(node, 1)
    if number is None and len(node.operands) > 2:
        return plain(em, node)
    value = node.attr("value") if number is None else number.attr("fill_value")
    return (em.op("aten.masked_fill.Scalar", x, mask, type=node.result.type, value=value),)


def _addcmul(target: str) -> Rule:
    """``x + value * (a · b)`` written out."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        x, a, b = operand(node), operand(node, 1), operand(node, 2)
        shape = broadcast(em.types[a].shape, em.types[b].shape)
        product = em.op(target, a, b, type=TensorType(node.result.type.dtype, shape))
        return (em.op("aten.add.Tensor", x, scaled(em, product, node.attr("value", 1)), type=node.result.type),)

    return rule


_NUMBER = (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "remainder",
    "fmod",
    "floor_divide",
    "bitwise_and",
    "bitwise_or",
)
_SAME_AS = {
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
}  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}.Scalar": _renamed(f"aten.{name}.Tensor") for name in _NUMBER},
    **{
        f"aten.{old}.{kind}": _renamed(f"aten.{new}.Tensor")
        for old, new in _SAME_AS.items()
        for kind in ("Tensor", "Scalar")
    },
    **{f"aten.add.{kind}": _add for kind in ("Tensor", "Scalar")},
    **{f"aten.{name}.{kind}": _sub for name in ("sub", "subtract") for kind in ("Tensor", "Scalar")},
    **{f"aten.rsub.{kind}": _rsub for kind in ("Tensor", "Scalar")},
    **{f"aten.{name}.{kind}": _mul for name in ("mul", "multiply") for kind in ("Tensor", "Scalar")},
    **{f"aten.{name}.{kind}": _div for name in ("div", "divide", "true_divide") for kind in ("Tensor", "Scalar")},
    "aten.__and__.Tensor": _logical("aten.logical_and.default", "aten.bitwise_and.Tensor"),
    "aten.bitwise_and.Tensor": _logical("aten.logical_and.default", "aten.bitwise_and.Tensor"),
    "aten.__or__.Tensor": _logical("aten.logical_or.default", "aten.bitwise_or.Tensor"),
    "aten.bitwise_or.Tensor": _logical("aten.logical_or.default", "aten.bitwise_or.Tensor"),
    "aten.bitwise_not.default": _logical("aten.logical_not.default", "aten.bitwise_not.default"),
    "aten.min.other": _renamed("aten.minimum.default"),
    "aten.max.other": _renamed("aten.maximum.default"),
    "aten.dropout.default": _dropout,
    "aten.feature_dropout.default": _dropout,
    "aten.alpha_dropout.default": _dropout,
    "aten.softmax.int": _softmax("aten.softmax.int"),
    "aten.log_softmax.int": _softmax("aten.log_softmax.int"),
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.layer_norm.default": _renamed("aten.layer_norm.default", "cudnn_enable"),
    "aten.full.default": _full("fill_value"),
    "aten.full_like.default": _full("fill_value"),
    "aten.new_full.default": _full("fill_value"),
    "aten.scalar_tensor.default": _full("s"),
    **{f"aten.{name}.default": _full(0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{f"aten.{name}.default": _full(1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": _full(0) for name in ("empty_like", "new_empty")},
    "aten.empty.memory_format": _full(0),
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.addcmul.default": _addcmul("aten.mul.Tensor"),
    "aten.addcdiv.default": _addcmul("aten.div.Tensor"),
}
