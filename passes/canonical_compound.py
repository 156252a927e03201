"""Operations that are a few others: gated units, parametric relu, variances, shuffled pixels, instance norm."""

from __future__ import annotations

import math

from autopar.ir.graph import Node
from autopar.ir.types import Attr, TensorType
from autopar.passes.canonical_arith import mean, plain, scaled, total
from autopar.passes.canonical_emit import Emitter
from autopar.passes.canonical_products import product
from autopar.passes.canonical_views import Rule, expand, integer, ints, operand, permute, reshape, split


def _glu(em: Emitter, node: Node) -> tuple[str, ...]:
    """The first half times the sigmoid of the second."""
    x, type_ = operand(node), node.result.type
    dim = integer(node.attr("dim", -1)) % len(type_.shape)
    left, right = split(em, x, dim, (type_.shape[dim],) * 2)
    return (em.op("aten.mul.Tensor", left, em.op("aten.sigmoid.default", right, type=type_), type=type_),)


def _prelu(em: Emitter, node: Node) -> tuple[str, ...]:
    """Where positive the value, else the value times the slope of its channel."""
    x, slope, type_ = operand(node), operand(node, 1), node.result.type
    rank, count = len(type_.shape), math.prod(em.types[operand(node, 1)].shape)
    slope = reshape(em, slope, (count, *(1,) * (rank - 2)) if count > 1 else ())
    positive = em.op("aten.gt.Tensor", x, type=TensorType("bool", type_.shape), other=0)
    return (
        em.op("aten.where.self", positive, x, em.op("aten.mul.Tensor", x, slope, type=type_), type=type_),
    )


def _as(target: str, *dropped: str) -> Rule:
    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        attrs: dict[str, Attr] = {name: value for name, value in node.attrs if name not in dropped}
        kept = Node(results=node.results, target=target, operands=node.operands, attrs=tuple(attrs.items()))
        return plain(em, kept)

    return rule


def _reduced(em: Emitter, node: Node) -> tuple[int, ...]:
    """The dims a reduction takes, all of them if it names none."""
    rank = len(em.types[operand(node)].shape)
    given = node.attr("dim")
    dims = ints(given) if given is not None else ()
    return tuple(sorted(dim % rank for dim in dims)) if dims else tuple(range(rank))


def _extreme(target: str) -> Rule:
    """The largest or smallest of all elements."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        return (em.op(target, operand(node), type=node.result.type, dim=_reduced(em, node)),)

    return rule


def _spread(target: str) -> Rule:
    """A variance or deviation, and the mean where that is asked for, too."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        x, kind = operand(node), node.results[0].type
        dims, keepdim = _reduced(em, node), bool(node.attr("keepdim", False))
        correction = node.attr("correction", 1 if node.attr("unbiased", True) else 0)
        attrs: dict[str, Attr] = {"dim": dims, "correction": correction}
        if keepdim:
            attrs["keepdim"] = True
        found = em.op(target, x, type=kind, **attrs)
        return (found, mean(em, x, dims, keepdim, kind.dtype)) if len(node.results) == 2 else (found,)

    return rule


def _norm(em: Emitter, node: Node) -> tuple[str, ...]:
    """The older spelling of a vector's norm."""
    attrs: dict[str, Attr] = {name: value for name, value in node.attrs if name not in ("p", "dim")}
    attrs |= {"ord": node.attr("p", 2), "dim": _reduced(em, node)}
    if attrs["ord"] is None:
        attrs["ord"] = 2
    return (em.op("aten.linalg_vector_norm.default", operand(node), type=node.result.type, **attrs),)


def _aminmax(em: Emitter, node: Node) -> tuple[str, ...]:
    attrs: dict[str, Attr] = {"dim": _reduced(em, node), "keepdim": bool(node.attr("keepdim", False))}
    return tuple(
        em.op(f"aten.{name}.default", operand(node), type=value.type, **attrs)
        for name, value in zip(("amin", "amax"), node.results, strict=True)
    )


def _count_nonzero(em: Emitter, node: Node) -> tuple[str, ...]:
    x, have = operand(node), em.types[operand(node)]
    found = em.op("aten.ne.Tensor", x, type=TensorType("bool", have.shape), other=0)
    return (total(em, found, _reduced(em, node), False, "i64"),)


def _xor(em: Emitter, node: Node) -> tuple[str, ...]:
    booleans = all(isinstance(name, str) and em.types[name].dtype == "bool" for name in node.operands)
    both = booleans and len(node.operands) == 2
    return _as("aten.logical_xor.default" if both else "aten.bitwise_xor.Tensor")(em, node)


def _pixel_shuffle(em: Emitter, node: Node) -> tuple[str, ...]:
    """Channels (c, r, r) become pixels: ``… (c r s) h w -> … c (h r) (w s)``."""
    x, shape = operand(node), node.result.type.shape
    r = integer(node.attr("upscale_factor"))
    *lead, c, h, w = shape
    n = len(lead)
    apart = reshape(em, x, (*lead, c, r, r, h // r, w // r))
    return (reshape(em, permute(em, apart, (*range(n + 1), n + 3, n + 1, n + 4, n + 2)), shape),)


def _pixel_unshuffle(em: Emitter, node: Node) -> tuple[str, ...]:
    x, shape = operand(node), node.result.type.shape
    r = integer(node.attr("downscale_factor"))
    *lead, c, h, w = em.types[x].shape
    n = len(lead)
    apart = reshape(em, x, (*lead, c, h // r, r, w // r, r))
    return (reshape(em, permute(em, apart, (*range(n + 1), n + 2, n + 4, n + 1, n + 3)), shape),)


def _channel_shuffle(em: Emitter, node: Node) -> tuple[str, ...]:
    x, shape = operand(node), node.result.type.shape
    groups = integer(node.attr("groups"))
    apart = reshape(em, x, (shape[0], groups, shape[1] // groups, *shape[2:]))
    return (reshape(em, permute(em, apart, (0, 2, 1, *range(3, len(shape) + 1))), shape),)


def _instance_norm(em: Emitter, node: Node) -> tuple[str, ...]:
    """Without running statistics a group norm with a group for each channel."""
    given = (*node.operands, *(None,) * (5 - len(node.operands)))
    if node.attr("use_input_stats") is not True or given[3] is not None or given[4] is not None:
        return plain(em, node)
    type_ = node.result.type
    attrs: dict[str, Attr] = {"num_groups": type_.shape[1], "eps": node.attr("eps")}
    return (em.op("aten.group_norm.default", *given[:3], type=type_, **attrs),)


def _roll(em: Emitter, node: Node) -> tuple[str, ...]:
    """Without dims the elements are rolled in one row."""
    if node.attr("dims"):
        return plain(em, node)
    x, type_ = operand(node), node.result.type
    flat = reshape(em, x, (math.prod(type_.shape),))
    rolled = em.op("aten.roll.default", flat, type=em.types[flat], shifts=ints(node.attr("shifts")), dims=(0,))
    return (reshape(em, rolled, type_.shape),)


def _meshgrid(em: Emitter, node: Node) -> tuple[str, ...]:
    """Each vector along a dim of its own."""
    pieces = node.operands[0]
    assert isinstance(pieces, tuple)
    order = list(range(len(pieces)))
    if node.attr("indexing", "ij") == "xy" and len(order) > 1:
        order[:2] = 1, 0
    made = []
    for piece, dim, value in zip(pieces, order, node.results, strict=True):
        assert piece is not None
        shape = value.type.shape
        row = tuple(extent if at == dim else 1 for at, extent in enumerate(shape))
        made.append(expand(em, reshape(em, piece, row), shape))
    return tuple(made)


def _sum_of_products(em: Emitter, node: Node) -> tuple[str, ...]:
    """addbmm: ``beta * bias + alpha * (sum of x @ y)``, the sum inside one product."""
    x, y = operand(node, 1), operand(node, 2)
    b, n, k = em.types[x].shape
    m, type_ = em.types[y].shape[2], node.result.type
    rows = reshape(em, permute(em, x, (1, 0, 2)), (n, b * k))
    made = scaled(em, product(em, rows, reshape(em, y, (b * k, m)), type_), node.attr("alpha", 1))
    if node.attr("beta", 1) == 0:
        return (made,)
    return (em.op("aten.add.Tensor", made, scaled(em, operand(node), node.attr("beta", 1)), type=type_),)


RULES: dict[str, Rule] = {
    "aten.glu.default": _glu,
    "aten.prelu.default": _prelu,
    "aten.clip.default": _as("aten.clamp.default"),
    "aten.clip.Tensor": _as("aten.clamp.Tensor"),
    "aten.max.default": _extreme("aten.amax.default"),
    "aten.min.default": _extreme("aten.amin.default"),
    **{
        f"aten.{name}.{kind}": _spread(f"aten.{name.removesuffix('_mean')}.correction")
        for name in ("var", "std", "var_mean", "std_mean")
        for kind in ("default", "dim", "correction")
    },
    **{f"aten.{name}.{kind}": _xor for name in ("__xor__", "bitwise_xor") for kind in ("Tensor", "Scalar")},
    "aten.aminmax.default": _aminmax,
    **{f"aten.norm.{kind}": _norm for kind in ("Scalar", "ScalarOpt_dim")},
    "aten.count_nonzero.default": _count_nonzero,
    "aten.count_nonzero.dim_IntList": _count_nonzero,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.instance_norm.default": _instance_norm,
    "aten.roll.default": _roll,
    "aten.meshgrid.default": _meshgrid,
    "aten.meshgrid.indexing": _meshgrid,
    "aten.addbmm.default": _sum_of_products,
}
