"""Rows of the op table: less common pointwise operations, reductions, and picking by index."""

from __future__ import annotations

from collections.abc import Callable

Rule = Callable[..., None]


def pointwise_rows(rule: Rule) -> None:
    for name in ("hardswish", "hardsigmoid", "selu", "celu", "log_sigmoid", "relu6", "softshrink", "hardshrink",
                 "threshold", "exp2", "expm1", "log2", "log10", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
                 "acosh", "atanh", "erfc", "erfinv", "lgamma", "digamma", "logit", "frac", "nan_to_num", "sinc", "i0",
                 "clamp_max"):  # fmt: skip
        rule(f"aten.{name}.default", "*b -> *b", saves=(0,))
    for name in ("trunc", "sgn", "signbit", "isfinite"):
        rule(f"aten.{name}.default", "*b -> *b")
    rule("aten.deg2rad.default", "*b -> *b", partial="0", backward=1.0)
    for name in ("pow.Tensor_Tensor", "clamp_min.Tensor", "clamp_max.Tensor", "fmax.default", "fmin.default",
                 "hypot.default", "xlogy.Tensor", "logaddexp.default", "logaddexp2.default", "copysign.Tensor",
                 "fmod.Tensor"):  # fmt: skip
        rule(f"aten.{name}", "*b, *b -> *b", saves=(0, 1))
    rule("aten.div.Tensor_mode", "*b, *b -> *b", saves=(0, 1))
    for name in ("heaviside.default", "logical_xor.default", "bitwise_xor.Tensor", "__lshift__.Tensor",
                 "__rshift__.Tensor"):  # fmt: skip
        rule(f"aten.{name}", "*b, *b -> *b")
    for name in ("__lshift__", "__rshift__"):
        rule(f"aten.{name}.Scalar", "*b -> *b")
    rule("aten.clamp.Tensor", "*b, *b, *b -> *b", saves=(0, 1, 2))
    rule("aten.lerp.Scalar", "*b, *b -> *b", partial="0+1", backward=1.0)
    rule("aten.lerp.Tensor", "*b, *b, *b -> *b", partial="0+1", saves=(0, 1, 2))
    for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss", "huber_loss",
                 "soft_margin_loss", "kl_div", "poisson_nll_loss"):  # fmt: skip
        rule(f"aten.{name}.default", "unreduced", saves=(0, 1))
    rule("aten.isin.Tensor_Tensor", "first_operand")
    rule("aten.bucketize.Tensor", "first_operand")
    rule("aten.one_hot.default", "*b -> *b !c")


def reduction_rows(rule: Rule) -> None:
    for name in ("sum.dim_IntList", "sum.default"):
        rule(f"aten.{name}", "reduction", backward=1.0, op_class="reduction")
    for name in ("amax.default", "amin.default", "any.dim", "all.dim", "var.correction", "std.correction"):
        rule(f"aten.{name}", "nonlinear_reduction", saves=(0,), op_class="reduction")
    for name in ("logsumexp.default", "prod.dim_int", "prod.default", "linalg_vector_norm.default", "any.default",
                 "all.default", "any.dims", "all.dims"):  # fmt: skip
        rule(f"aten.{name}", "nonlinear_reduction", saves=(0, "r"), op_class="reduction")
    for name in ("argmax.default", "argmin.default", "max.dim", "min.dim", "median.dim", "kthvalue.default",
                 "mode.default"):  # fmt: skip
        rule(f"aten.{name}", "picking_reduction", saves=("r",), op_class="reduction")
    for name in ("topk.default", "sort.default", "sort.stable", "argsort.default", "argsort.stable", "cummax.default",
                 "cummin.default", "logcumsumexp.default"):  # fmt: skip
        rule(f"aten.{name}", "along_dim", saves=("r",), op_class="reduction")
    rule("aten.histc.default", "histogram", op_class="reduction")
    rule("aten.cdist.default", "*b m !k, *b n !k -> *b m n", saves=(0, 1, "r"), op_class="reduction")


def index_rows(rule: Rule) -> None:
    rule("aten.index.Tensor", "index", backward=1.0, saves=(1,))
    rule("aten.index_put.default", "index_put", backward=1.0)
    rule("autopar.pick", "pick", backward=1.0, saves=(1,))
    for name in ("index_add.default", "index_copy.default", "index_fill.int_Scalar", "index_fill.int_Tensor"):
        rule(f"aten.{name}", "index_along", backward=1.0, saves=(1,))
    for name in ("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two"):
        rule(f"aten.{name}", "scatter", backward=1.0, saves=(1,))
    for name in ("tril", "triu"):
        rule(f"aten.{name}.default", "*b !m !n -> *b !m !n", partial="0", backward=1.0)
    rule("aten.linalg_inv.default", "*b !m !n -> *b !m !n", saves=("r",))
    for name in ("diagonal", "diag_embed"):
        rule(f"aten.{name}.default", "last_dims", backward=1.0, op_class="view")
    for name in ("linspace.default", "tril_indices.default", "triu_indices.default", "hann_window.default",
                 "hamming_window.default", "blackman_window.default"):  # fmt: skip
        rule(f"aten.{name}", "replicated")
    rule("aten.full.default", "-> *b")
