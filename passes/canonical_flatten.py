"""Move the flattening of leading dims past the work, until it meets its unflattening and both vanish.

``[b, s, h] -> [b*s, h]``, a product, ``[b*s, n] -> [b, s, n]`` is the product on ``[b, s, h]``: batch and
sequence stay dims of their own. A flattening moves past every operation that leaves the flattened dim
alone; where it meets nothing it stays, further down.
"""

from __future__ import annotations

import math

from autopar.ir.types import TensorType
from autopar.passes.canonical_emit import Attrs, Emitter, Operands, Types
from autopar.passes.canonical_views import broadcast, ints, operand, reshape

_UNARY = (
    "abs", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "dropout", "elu", "erf", "exp", "expm1", "floor",
    "gelu", "hardsigmoid", "hardswish", "hardtanh", "isinf", "isnan", "leaky_relu", "log", "log1p", "log2",
    "log_sigmoid", "logical_not", "mish", "nan_to_num", "neg", "reciprocal", "relu", "relu6", "round",
    "rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square", "tanh", "trunc",
)  # fmt: skip
_BINARY = (
    "add", "atan2", "bitwise_and", "bitwise_or", "div", "eq", "fmod", "ge", "gt", "le", "lt", "mul", "ne",
    "remainder", "sub",
)  # fmt: skip
ELEMENTWISE = frozenset(
    {f"aten.{name}.default" for name in (*_UNARY, "logical_and", "logical_or", "maximum", "minimum", "polar")}
    | {f"aten.{name}.Tensor" for name in _BINARY}
    | {
        "aten.pow.Tensor_Scalar",
        "aten.pow.Tensor_Tensor",
        "aten.pow.Scalar",
        "aten.to.dtype",
        "autopar.detach",
    }
    | {"aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.masked_fill.Scalar"}
    | {"aten.div.Tensor_mode", "aten.clamp.Tensor", "aten.lerp.Scalar", "aten.lerp.Tensor"}
)

# Operations that leave leading dims of one operand alone: which operand, and the attributes that hold dims.
_ALONG = {
    "aten.linear.default": (0, ()),
    "aten.embedding.default": (1, ()),
    "aten.layer_norm.default": (0, ()),
    "aten.rms_norm.default": (0, ()),
    "aten.softmax.int": (0, ("dim",)),
    "aten.log_softmax.int": (0, ("dim",)),
    "aten.sum.dim_IntList": (0, ("dim",)),
    "aten.amax.default": (0, ("dim",)),
    "aten.cumsum.default": (0, ("dim",)),
    "aten.glu.default": (0, ("dim",)),
    "aten.slice.Tensor": (0, ("dim",)),
    "aten.split_with_sizes.default": (0, ("dim",)),
    "aten.one_hot.default": (0, ()),
    "autopar.assign": (0, ()),
}  # fmt: skip


def broadcast_or_sink(
    em: Emitter, target: str, operands: Operands, attrs: Attrs, types: Types
) -> tuple[str, ...] | None:
    """The rewrite of every operation: no expansions that broadcasting makes anyway, then ``sink``."""
    if target in ELEMENTWISE and len(operands) > 1:
        inner = tuple(_unexpanded(em, name) if isinstance(name, str) else name for name in operands)
        if (
            inner != operands
            and broadcast(*(em.types[name].shape for name in _names(inner))) == types[0].shape
        ):
            return em.emit(target, inner, attrs, types)
    return sink(em, target, operands, attrs, types)


def _unexpanded(em: Emitter, x: str) -> str:
    node = em.made_by(x, "aten.expand.default")
    return x if node is None else operand(node)


def sink(em: Emitter, target: str, operands: Operands, attrs: Attrs, types: Types) -> tuple[str, ...] | None:
    """The operation on unflattened operands with its results flattened, or None if nothing is to be moved.

    Requires: ``dim`` attributes are not negative.
    """
    if not any(em.made_by(name, "aten.reshape.default") for name in _names(operands)):
        return None
    if target in ELEMENTWISE:
        return _elementwise(em, target, operands, attrs, types)
    if target == "aten.matmul.default":
        return _matmul(em, operands, attrs, types)
    if target == "aten.cat.default":
        return _cat(em, operands, attrs, types)
    if target in _ALONG:
        return _along(em, target, operands, attrs, types)
    return None


def flattened(em: Emitter, x: str) -> tuple[int, ...] | None:
    """The dims that a reshape has made into the first dim of ``x``, if it did."""
    node = em.made_by(x, "aten.reshape.default")
    shape = em.types[x].shape
    if node is None or not shape:
        return None
    have = em.types[operand(node)].shape
    for count in range(1, len(have) + 1):
        if math.prod(have[:count]) == shape[0]:
            return have[:count] if count > 1 else None
    return None


def unflattened(em: Emitter, x: str, lead: tuple[int, ...]) -> str:
    """``x`` with its first dim made into ``lead``."""
    return reshape(em, x, lead + em.types[x].shape[1:])


def _names(operands: Operands) -> list[str]:
    flat = [name for item in operands for name in (item if isinstance(item, tuple) else (item,))]
    return [name for name in flat if name is not None]


def _back(
    em: Emitter, target: str, operands: Operands, attrs: Attrs, types: Types, lead: tuple[int, ...]
) -> tuple[str, ...]:
    """Emit on unflattened operands, flatten the results."""
    wide = tuple(TensorType(type_.dtype, lead + type_.shape[1:]) for type_ in types)
    results = em.emit(target, operands, attrs, wide)
    return tuple(reshape(em, name, type_.shape) for name, type_ in zip(results, types, strict=True))


def _elementwise(
    em: Emitter, target: str, operands: Operands, attrs: Attrs, types: Types
) -> tuple[str, ...] | None:
    """All operands that have the first dim are flattenings of the same dims; the others lack it."""
    (type_,) = types
    rank = len(type_.shape)
    if not rank:
        return None
    lead: tuple[int, ...] | None = None
    for name in _names(operands):
        shape = em.types[name].shape
        if len(shape) == rank and shape[0] == type_.shape[0] and shape[0] != 1:
            own = flattened(em, name)
            if own is None or (lead is not None and own != lead):
                return None
            lead = own
    if lead is None:
        return None

    def wide(name: str) -> str:
        shape = em.types[name].shape
        if len(shape) < rank:
            return name
        return unflattened(em, name, lead if shape[0] == type_.shape[0] else (1,) * len(lead))

    given = tuple(wide(name) if isinstance(name, str) else name for name in operands)
    return _back(em, target, given, attrs, types, lead)


def _matmul(em: Emitter, operands: Operands, attrs: Attrs, types: Types) -> tuple[str, ...] | None:
    """``[b*s, k] @ [k, n]``, or a batch flattened alike on both sides."""
    x, y = _names(operands)
    lead = flattened(em, x)
    if lead is None or len(em.types[x].shape) < 2:
        return None
    if len(em.types[y].shape) == 2:
        return _back(em, "aten.matmul.default", (unflattened(em, x, lead), y), attrs, types, lead)
    ranks = len(em.types[x].shape), len(em.types[y].shape)
    if ranks[0] != ranks[1] or ranks[0] < 3 or flattened(em, y) != lead:
        return None
    return _back(
        em, "aten.matmul.default", (unflattened(em, x, lead), unflattened(em, y, lead)), attrs, types, lead
    )


def _cat(em: Emitter, operands: Operands, attrs: Attrs, types: Types) -> tuple[str, ...] | None:
    names = _names(operands)
    lead = flattened(em, names[0])
    if lead is None or attrs["dim"] == 0 or any(flattened(em, name) != lead for name in names):
        return None
    given = (tuple(unflattened(em, name, lead) for name in names),)
    return _back(em, "aten.cat.default", given, _shifted(attrs, ("dim",), len(lead) - 1), types, lead)


def _along(
    em: Emitter, target: str, operands: Operands, attrs: Attrs, types: Types
) -> tuple[str, ...] | None:
    at, dims = _ALONG[target]
    x = operands[at]
    lead = flattened(em, x) if isinstance(x, str) else None
    if lead is None or not isinstance(x, str):
        return None
    used = [dim for name in dims for dim in ints(attrs[name])]
    whole = len(em.types[x].shape) - len(ints(attrs.get("normalized_shape", ())))
    if 0 in used or whole < 1 or (target == "aten.linear.default" and len(em.types[x].shape) < 2):
        return None
    given = (*operands[:at], unflattened(em, x, lead), *operands[at + 1 :])
    return _back(em, target, given, _shifted(attrs, dims, len(lead) - 1), types, lead)


def _shifted(attrs: Attrs, names: tuple[str, ...], by: int) -> Attrs:
    moved: Attrs = {}
    for name in names:
        value = attrs[name]
        moved[name] = value + by if isinstance(value, int) else tuple(dim + by for dim in ints(value))
    return {**attrs, **moved}
