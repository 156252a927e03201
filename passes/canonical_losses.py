"""Losses as a sum over the batch, divided by a denominator of the whole batch.

A mean does not survive a split of the batch unless its denominator is global. So
``cross_entropy_loss`` becomes ``autopar.cross_entropy``, the sum over all valid targets, divided by
``autopar.count_targets``; other means become sums divided by a number. Logits and targets keep their
batch and sequence dims.

    %sum = autopar.cross_entropy(%logits [*n, c], %target [*n], %weight [c]?)
           {ignore_index, label_smoothing?, dtype?}
    %rows [*n] = autopar.cross_entropy_rows(…) the same, without reduction
    %rows [*n] = autopar.soft_cross_entropy_rows(%logits [*n, c], %probabilities [*n, c], %weight [c]?)
                 {label_smoothing?, dtype?}
    %count = autopar.count_targets(%target, %weight?) {ignore_index, dtype}

``dtype`` stands where the sum is kept wider than the logits are: a sum over a batch overflows f16.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.graph import Node
from autopar.ir.types import Attr, TensorType
from autopar.passes.canonical_arith import mean, plain, total
from autopar.passes.canonical_emit import Emitter
from autopar.passes.canonical_flatten import flattened, unflattened
from autopar.passes.canonical_views import Rule, broadcast, cast, integer, operand, permute, reshape

_NONE, _MEAN, _SUM = 0, 1, 2
_HALF = ("bf16", "f16")


def _cross_entropy(em: Emitter, node: Node) -> tuple[str, ...]:
    smoothing = node.attr("label_smoothing", 0.0)
    weight = node.operands[2] if len(node.operands) > 2 else None
    loss = _Loss(
        operand(node, 1), weight if isinstance(weight, str) else None, node.attr("reduction", _MEAN),
        integer(node.attr("ignore_index", -100)), smoothing if isinstance(smoothing, float) else 0.0, node.result.type,
    )  # fmt: skip
    if em.types[loss.target].is_float and loss.weight is not None and em.learns(loss.weight):
        return plain(em, node)  # only torch's own keeps the gradient of class weights
    return (_classes(em, operand(node), loss),)


def _nll(em: Emitter, node: Node) -> tuple[str, ...]:
    """The negative log likelihood of a log_softmax is a cross entropy of its logits."""
    made = em.made_by(node.operands[0], "aten.log_softmax.int")
    classes = 0 if len(em.types[operand(node)].shape) == 1 else 1
    if made is None or made.attr("dim") != classes:
        wide = em.made_by(node.operands[0], "aten.reshape.default")
        made = em.made_by(wide.operands[0], "aten.log_softmax.int") if wide is not None else None
        last = made is not None and made.attr("dim") == len(made.result.type.shape) - 1
        if made is None or not last or len(em.types[operand(node)].shape) != 2:
            return plain(em, node)
        logits = reshape(em, operand(made), em.types[operand(node)].shape)
    else:
        logits = operand(made)
    weight = node.operands[2] if len(node.operands) > 2 else None
    ignored = integer(node.attr("ignore_index", -100))
    reduction = node.attr("reduction", _MEAN)
    known = weight if isinstance(weight, str) else None
    return (_classes(em, logits, _Loss(operand(node, 1), known, reduction, ignored, 0.0, node.result.type)),)


def _gather(em: Emitter, node: Node) -> tuple[str, ...]:
    """One class of each row of a log_softmax: minus the row's cross entropy."""
    made = em.made_by(node.operands[0], "aten.log_softmax.int")
    index, shape = operand(node, 1), node.result.type.shape
    last = len(shape) - 1
    if made is None or made.attr("dim") != last or integer(node.attr("dim")) % len(shape) != last:
        return plain(em, node)
    if shape != (*made.result.type.shape[:-1], 1):
        return plain(em, node)
    rows = TensorType(node.result.type.dtype, shape[:-1])
    logits = cast(em, operand(made), rows.dtype)
    found = em.op(
        "autopar.cross_entropy_rows", logits, reshape(em, index, shape[:-1]), type=rows, ignore_index=-100
    )
    return (reshape(em, em.op("aten.neg.default", found, type=rows), shape),)


@dataclass(frozen=True)
class _Loss:
    """A cross-entropy but for its logits, as torch is given it."""

    target: str
    weight: str | None
    reduction: Attr
    ignored: int
    smoothing: float
    type: TensorType


def _classes(em: Emitter, logits: str, loss: _Loss) -> str:
    """The loss with classes last and leading dims unflattened."""
    target, rank = loss.target, len(em.types[logits].shape)
    soft = em.types[target].is_float
    order = (0, *range(2, rank), 1)
    if rank > 2:
        logits = permute(em, logits, order)
        target = permute(em, target, order) if soft else target
    lead = flattened(em, logits) or flattened(em, target)
    if lead is not None and rank > 1:
        logits, target = unflattened(em, logits, lead), unflattened(em, target, lead)
    weights = () if loss.weight is None else (loss.weight,)
    wide = "f32" if loss.type.dtype in _HALF else loss.type.dtype
    scalar, rows = TensorType(wide, ()), TensorType(wide, em.types[logits].shape[:-1])
    given: dict[str, Attr] = {} if soft else {"ignore_index": loss.ignored}
    kept: dict[str, Attr] = {**given, **({"label_smoothing": loss.smoothing} if loss.smoothing else {})}
    if wide != em.types[logits].dtype:
        kept["dtype"] = wide
    if soft or loss.reduction == _NONE:
        name = "autopar.soft_cross_entropy_rows" if soft else "autopar.cross_entropy_rows"
        found = em.op(name, logits, target, *weights, type=rows, **kept)
        if loss.reduction == _NONE:
            return cast(em, reshape(em, found, loss.type.shape), loss.type.dtype)
        found = (mean if loss.reduction == _MEAN else total)(em, found, tuple(range(len(rows.shape))), False, wide)
        return cast(em, found, loss.type.dtype)
    summed = em.op("autopar.cross_entropy", logits, target, *weights, type=scalar, **kept)
    if loss.reduction == _MEAN:
        count = em.op("autopar.count_targets", target, *weights, type=scalar, dtype=wide, **given)
        summed = em.op("aten.div.Tensor", summed, count, type=scalar)
    return cast(em, summed, loss.type.dtype)


def _reduced(em: Emitter, x: str, reduction: Attr, dtype: str) -> str:
    dims = tuple(range(len(em.types[x].shape)))
    if reduction == _NONE:
        return x
    return (mean if reduction == _MEAN else total)(em, x, dims, False, dtype)


def _difference(em: Emitter, node: Node) -> str:
    x, y = operand(node), operand(node, 1)
    shape = broadcast(em.types[x].shape, em.types[y].shape)
    return em.op("aten.sub.Tensor", x, y, type=TensorType(node.result.type.dtype, shape))


def _mse(em: Emitter, node: Node) -> tuple[str, ...]:
    gap = _difference(em, node)
    square = em.op("aten.mul.Tensor", gap, gap, type=em.types[gap])
    return (_reduced(em, square, node.attr("reduction", _MEAN), node.result.type.dtype),)


def _l1(em: Emitter, node: Node) -> tuple[str, ...]:
    gap = _difference(em, node)
    size = em.op("aten.abs.default", gap, type=em.types[gap])
    return (_reduced(em, size, node.attr("reduction", _MEAN), node.result.type.dtype),)


def _pointwise(em: Emitter, node: Node) -> tuple[str, ...]:
    """A loss that is a pointwise operation and a reduction: the two apart."""
    reduction = node.attr("reduction", _MEAN)
    if reduction == _NONE:
        return plain(em, node)
    names = [name for name in node.operands if isinstance(name, str)]
    shape = broadcast(*(em.types[name].shape for name in names))
    each = em.emit(
        node.target,
        node.operands,
        {**dict(node.attrs), "reduction": _NONE},
        (TensorType(node.result.type.dtype, shape),),
    )
    return (_reduced(em, each[0], reduction, node.result.type.dtype),)


_POINTWISE = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss", "huber_loss",
    "soft_margin_loss", "kl_div", "poisson_nll_loss",
)  # fmt: skip
RULES: dict[str, Rule] = {
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.nll_loss_nd.default": _nll,
    "aten.nll_loss.default": _nll,
    "aten.gather.default": _gather,
    "aten.mse_loss.default": _mse,
    "aten.l1_loss.default": _l1,
    **{f"aten.{name}.default": _pointwise for name in _POINTWISE},
}
