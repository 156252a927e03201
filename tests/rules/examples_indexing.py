"""Example calls of operations that pick by index, of less common pointwise ones and reductions."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.ir.types import Attr
from tests.rules.example import Arg, Example, above, bools, call, f, fixed, ints, part, positive


def _pointwise() -> Iterator[Example]:
    for name in ("hardswish", "hardsigmoid", "selu", "celu", "log_sigmoid", "relu6", "softshrink", "hardshrink",
                 "expm1", "exp2", "atan", "sinh", "cosh", "asinh", "erfc", "frac", "nan_to_num", "sinc", "i0",
                 "trunc", "sgn", "signbit", "isfinite", "deg2rad"):  # fmt: skip
        yield call(f"aten.{name}.default", f(12, 1, 5))
    for name in ("log2", "log10", "lgamma", "digamma"):
        yield call(f"aten.{name}.default", positive(12, 7))
    for name in ("tan", "asin", "acos", "atanh", "erfinv"):
        yield call(f"aten.{name}.default", part(12, 2))
    yield call("aten.acosh.default", above(12, 2))
    yield call("aten.logit.default", part(4, 6), eps=0.1)
    yield call("aten.threshold.default", f(12, 5), threshold=0.1, value=2.0)
    yield call("aten.clamp_max.default", f(4, 6), max=0.1)
    for name in ("clamp_min.Tensor", "clamp_max.Tensor", "fmax.default", "fmin.default", "hypot.default",
                 "logaddexp.default", "logaddexp2.default", "copysign.Tensor"):  # fmt: skip
        yield call(f"aten.{name}", f(12, 5), f(12, 5))
        yield call(f"aten.{name}", f(4, 1, 6), f(3, 1))
    for name in ("pow.Tensor_Tensor", "xlogy.Tensor"):
        yield call(f"aten.{name}", positive(4, 1, 6), positive(3, 1))
    yield call("aten.fmod.Tensor", f(4, 6), fixed(6))
    yield call("aten.fmod.Tensor", f(4, 6), other=0.7)
    yield call("aten.div.Tensor_mode", f(4, 6), positive(6), rounding_mode="floor")
    yield call("aten.div.Tensor_mode", ints(30, 12), other=4, rounding_mode="trunc")
    yield call("aten.heaviside.default", fixed(12, 4), fixed(4))
    yield call("aten.logical_xor.default", bools(12, 1), bools(4))
    yield call("aten.bitwise_xor.Tensor", ints(9, 12, 4), ints(9, 4))
    yield call("aten.bitwise_xor.Tensor", ints(9, 12, 4), other=5)
    for name in ("__lshift__", "__rshift__"):
        yield call(f"aten.{name}.Tensor", ints(9, 12, 4), ints(3, 4))
        yield call(f"aten.{name}.Scalar", ints(9, 12, 4), other=1)
    yield call("aten.clamp.Tensor", f(12, 4), f(4), f(12, 1))
    yield call("aten.clamp.Tensor", f(12, 4), None, f(12, 1))
    yield call("aten.lerp.Scalar", f(12, 4), f(12, 4), weight=0.3)
    yield call("aten.lerp.Tensor", f(12, 4), f(12, 4), f(12, 4))
    for name in ("smooth_l1_loss", "huber_loss", "soft_margin_loss", "poisson_nll_loss", "kl_div",
                 "binary_cross_entropy_with_logits"):  # fmt: skip
        more: dict[str, Attr] = {"log_input": True, "full": False, "eps": 1e-8} if "poisson" in name else {}
        target = Arg((4, 6), "part" if "kl" in name else "fixed")
        yield call(f"aten.{name}.default", f(4, 6), target, reduction=0, **more)
    yield call("aten.kl_div.default", f(4, 6), f(4, 6), reduction=0, log_target=True)
    yield call("aten.huber_loss.default", f(4, 6), f(4, 6))
    yield call("aten.binary_cross_entropy.default", part(12, 5), part(12, 5), fixed(12, 5), reduction=0)
    bce = "aten.binary_cross_entropy_with_logits.default"
    yield call(bce, f(12, 4), part(12, 4), None, fixed(4), reduction=0)
    yield call("aten.isin.Tensor_Tensor", ints(20, 12, 4), ints(20, 6))
    yield call("aten.bucketize.Tensor", fixed(12, 4), fixed(3))
    yield call("aten.one_hot.default", ints(6, 4, 12), num_classes=6)


def _reductions() -> Iterator[Example]:
    yield call("aten.logsumexp.default", f(4, 12), dim=(-1,))
    yield call("aten.logsumexp.default", f(12, 4), dim=(0,), keepdim=True)
    yield call("aten.prod.dim_int", positive(4, 12), dim=1)
    yield call("aten.prod.default", positive(2, 4))
    yield call("aten.linalg_vector_norm.default", f(4, 12), dim=(1,), keepdim=True)
    yield call("aten.linalg_vector_norm.default", f(4, 12), ord=1)
    yield call("aten.histc.default", fixed(4, 12), bins=5, min=-2, max=2)
    yield call("aten.histc.default", fixed(12), bins=12, max=1)
    yield call("aten.histc.default", fixed(12, 4), bins=4)
    for name in ("any", "all"):
        yield call(f"aten.{name}.default", bools(12, 4))
        yield call(f"aten.{name}.dims", bools(12, 4, 2), dim=(0, 2))
    for name in ("argmax", "argmin"):
        yield call(f"aten.{name}.default", fixed(12, 4), dim=1)
        yield call(f"aten.{name}.default", fixed(12, 4), dim=0, keepdim=True)
        yield call(f"aten.{name}.default", fixed(12, 4))
    for name in ("max.dim", "min.dim", "median.dim", "mode.default"):
        yield call(f"aten.{name}", f(12, 4), dim=1)
        yield call(f"aten.{name}", f(4, 12), dim=0, keepdim=True)
    yield call("aten.kthvalue.default", f(12, 4), k=2, dim=1)
    yield call("aten.topk.default", f(12, 6), k=2, dim=1)
    yield call("aten.topk.default", f(6, 12), k=6, dim=0)
    yield call("aten.sort.default", f(12, 4), dim=0, descending=True)
    yield call("aten.sort.stable", f(12, 4), dim=1, stable=True)
    yield call("aten.argsort.default", fixed(12, 4), dim=1)
    yield call("aten.argsort.stable", fixed(12, 4), dim=0, stable=True)
    for name in ("cummax", "cummin", "logcumsumexp"):
        yield call(f"aten.{name}.default", f(12, 4), dim=1)
    yield call("aten.cdist.default", f(2, 12, 5), f(2, 4, 5))


def _indexing() -> Iterator[Example]:
    index = "aten.index.Tensor"
    yield call(index, f(12, 4), (None, ints(4, 6)))
    yield call(index, f(6, 12), (ints(6, 4, 12),))
    yield call(index, f(4, 5, 3, 6), (None, ints(5, 12, 1), ints(3, 4)))
    yield call(index, f(5, 4, 3), (ints(5, 12), None, ints(3, 12)))
    yield call(index, f(12, 1, 4), (None, ints(1, 6)))
    put = "aten.index_put.default"
    yield call(put, f(5, 12), (ints(5, 4),), f(4, 12), accumulate=True)
    yield call(put, f(12, 5, 3), (None, ints(5, 4), ints(3, 4)), f(12, 4), accumulate=True)
    yield call(put, f(5, 4, 3), (ints(5, 4), None, ints(3, 4)), f(1), accumulate=True)
    yield call("autopar.pick", f(12, 6, 4), ints(6, 12), lead=1)
    yield call("autopar.pick", f(4, 5), ints(5, 4, 12), lead=1)
    yield call("autopar.pick", f(2, 4, 5, 6), ints(5, 2, 4, 3), lead=2)
    yield call("aten.index_add.default", f(5, 12), ints(5, 4), f(4, 12), dim=0)
    yield call("aten.index_add.default", f(12, 5), ints(5, 6), f(12, 6), dim=-1, alpha=2)
    yield call("aten.index_copy.default", f(12, 5), ints(5, 1), f(12, 1), dim=1)
    yield call("aten.index_fill.int_Scalar", f(12, 5), ints(5, 3), dim=1, value=2.0)
    yield call("aten.index_fill.int_Tensor", f(12, 5), ints(5, 3), f(), dim=1)
    yield call("aten.scatter.src", f(12, 5), ints(5, 12, 1), f(12, 1), dim=1)
    yield call("aten.scatter.value", f(12, 5), ints(5, 12, 3), dim=1, value=2.0)
    yield call("aten.scatter_add.default", f(5, 12), ints(5, 7, 12), f(7, 12), dim=0)
    yield call("aten.scatter_add.default", f(12, 5), ints(5, 4, 3), f(4, 3), dim=1)
    yield call("aten.scatter_reduce.two", f(12, 5), ints(5, 12, 3), f(12, 3), dim=1, reduce="sum")
    for name in ("tril", "triu"):
        yield call(f"aten.{name}.default", f(4, 12, 5), diagonal=1)
    yield call("aten.linalg_inv.default", f(12, 4, 4))
    yield call("aten.diagonal.default", f(4, 4, 12))
    yield call("aten.diagonal.default", f(12, 4, 5), offset=1, dim1=1, dim2=-1)
    yield call("aten.diag_embed.default", f(12, 4))
    yield call("aten.diag_embed.default", f(12, 4), offset=-1, dim1=0, dim2=2)


def _constants() -> Iterator[Example]:
    yield call("aten.full.default", size=(4, 6), fill_value=1.5, dtype="f64")
    yield call("aten.full.default", size=(1, 12, 5), fill_value=False, dtype="bool")
    yield call("aten.linspace.default", start=0.0, end=1.0, steps=12, dtype="f64")
    for name in ("hann", "hamming", "blackman"):
        yield call(f"aten.{name}_window.default", window_length=12, dtype="f64")
    for name in ("tril_indices", "triu_indices"):
        yield call(f"aten.{name}.default", row=4, col=4, dtype="i64")


INDEXING: list[Example] = [*_pointwise(), *_reductions(), *_indexing(), *_constants()]
