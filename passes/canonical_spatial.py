"""Convolutions and pooling in one spelling each.

    convolutions  aten.convolution.default (x, w) {stride, padding, dilation, transposed, output_padding, groups},
                  each of the first three and ``output_padding`` with one number a dim; x has a batch dim;
                  a bias is an aten.add.Tensor after it
    pooling       kernel_size, stride, padding and dilation have one number a dim; a mean over a whole dim is a sum
"""

from __future__ import annotations

from autopar.ir.graph import Node
from autopar.ir.types import TensorType
from autopar.passes.canonical_arith import mean
from autopar.passes.canonical_emit import Attrs, Emitter
from autopar.passes.canonical_views import Rule, Shape, ints, operand, reshape


def _each(node: Node, name: str, count: int, default: int) -> Shape:
    """An attribute with one number a dim; torch takes one for all of them, too."""
    value = node.attr(name)
    given = (default,) if value is None else ints(value)
    return given * count if len(given) == 1 else given


def _convolution(em: Emitter, node: Node) -> tuple[str, ...]:
    x, w = operand(node), operand(node, 1)
    type_ = node.result.type
    count = len(em.types[w].shape) - 2
    batched = len(em.types[x].shape) == count + 2
    if not batched:
        x = reshape(em, x, (1, *em.types[x].shape))
    padding = node.attr("padding")
    gaps = _each(node, "dilation", count, 1)
    if isinstance(padding, str):
        x, pads = _padded(em, x, padding, em.types[w].shape[2:], gaps)
    else:
        pads = _each(node, "padding", count, 0)
    attrs: Attrs = {
        "stride": _each(node, "stride", count, 1),
        "padding": pads,
        "dilation": gaps,
        "transposed": node.attr("transposed") is True or "conv_transpose" in node.target,
        "output_padding": _each(node, "output_padding", count, 0),
        "groups": node.attr("groups", 1),
    }
    made = TensorType(type_.dtype, type_.shape if batched else (1, *type_.shape))
    y = em.op("aten.convolution.default", x, w, type=made, **attrs)
    if len(node.operands) > 2 and node.operands[2] is not None:
        bias = reshape(em, operand(node, 2), (made.shape[1], *(1,) * count))
        y = em.op("aten.add.Tensor", y, bias, type=made)
    return (reshape(em, y, type_.shape),)


def _padded(em: Emitter, x: str, how: str, kernel: Shape, gaps: Shape) -> tuple[str, Shape]:
    """``x`` and the padding that ``valid`` or ``same`` stands for; an odd element of it goes to the end."""
    totals = [gap * (size - 1) if how == "same" else 0 for gap, size in zip(gaps, kernel, strict=True)]
    if any(total % 2 for total in totals):
        have = em.types[x]
        lead = len(have.shape) - len(kernel)
        extra = [total % 2 for total in totals]
        shape = (*have.shape[:lead], *(n + more for n, more in zip(have.shape[lead:], extra, strict=True)))
        pad = tuple(length for more in reversed(extra) for length in (0, more))
        x = em.op("aten.pad.default", x, type=TensorType(have.dtype, shape), pad=pad)
    return x, tuple(total // 2 for total in totals)


def _pool(count: int) -> Rule:
    """Pooling over the last ``count`` dims."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        kernel = _each(node, "kernel_size", count, 1)
        attrs = dict(node.attrs)
        attrs["kernel_size"] = kernel
        attrs["stride"] = _each(node, "stride", count, 1) if node.attr("stride") else kernel
        for name, default in (("padding", 0), ("dilation", 1)):
            value = _each(node, name, count, default)
            attrs.pop(name, None)
            if any(number != default for number in value):
                attrs[name] = value
        return em.emit(node.target, node.operands, attrs, tuple(value.type for value in node.results))

    return rule


def _adaptive_mean(count: int) -> Rule:
    """Over whole dims a mean; in equal windows the pooling with that window; else as it is."""

    def rule(em: Emitter, node: Node) -> tuple[str, ...]:
        x, type_ = operand(node), node.result.type
        have = em.types[x].shape
        lead = len(have) - count
        gone = tuple(dim for dim in range(lead, len(have)) if type_.shape[dim] == 1 != have[dim])
        if gone:
            x = mean(em, x, gone, True, type_.dtype)
        pairs = list(zip(em.types[x].shape[lead:], type_.shape[lead:], strict=True))
        if all(before == after for before, after in pairs):
            return (x,)
        if any(before % after for before, after in pairs):
            return (em.op(node.target, x, type=type_, output_size=type_.shape[lead:]),)
        kernel = tuple(before // after for before, after in pairs)
        return (em.op(f"aten.avg_pool{count}d.default", x, type=type_, kernel_size=kernel, stride=kernel),)

    return rule


RULES: dict[str, Rule] = {
    **{f"aten.conv{n}d.{kind}": _convolution for n in (1, 2, 3) for kind in ("default", "padding")},
    "aten.conv_transpose1d.default": _convolution,
    "aten.conv_transpose2d.input": _convolution,
    "aten.conv_transpose3d.input": _convolution,
    "aten.convolution.default": _convolution,
    **{f"aten.{kind}_pool{n}d.default": _pool(n) for n in (1, 2, 3) for kind in ("max", "avg")},
    **{f"aten.max_pool{n}d_with_indices.default": _pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": _adaptive_mean(n) for n in (1, 2, 3)},
}
