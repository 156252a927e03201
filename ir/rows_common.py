"""Rows of the op table: what almost every network is made of."""

from __future__ import annotations

from collections.abc import Callable

from autopar.ir.rules import RESULT

Rule = Callable[..., None]


def arithmetic_rows(rule: Rule) -> None:
    for name in ("add.Tensor", "sub.Tensor"):
        rule(f"aten.{name}", "*b, *b -> *b", partial="0+1", backward=1.0, uneven=(RESULT,))
    rule("aten.mul.Tensor", "*b, *b -> *b", partial="0|1", saves=(0, 1), crossed=True, uneven=(RESULT,))
    rule("aten.div.Tensor", "*b, *b -> *b", partial="0", saves=(0, 1), crossed=True)
    rule("aten.polar.default", "*b, *b -> *b", saves=("r",))
    for name in ("minimum.default", "maximum.default", "atan2.default"):
        rule(f"aten.{name}", "*b, *b -> *b", saves=(0, 1))
    for name in ("neg.default",):
        rule(f"aten.{name}", "*b -> *b", partial="0", backward=1.0)
    for name in ("relu.default", "tanh.default", "sigmoid.default", "exp.default", "rsqrt.default", "sqrt.default",
                 "reciprocal.default"):  # fmt: skip
        rule(f"aten.{name}", "*b -> *b", saves=("r",))
    for name in ("silu.default", "gelu.default", "log.default", "abs.default", "cos.default", "sin.default",
                 "erf.default", "pow.Tensor_Scalar", "clamp.default", "clamp_min.default", "softplus.default",
                 "leaky_relu.default", "elu.default", "hardtanh.default", "log1p.default", "mish.default",
                 "pow.Scalar", "square.default"):  # fmt: skip
        rule(f"aten.{name}", "*b -> *b", saves=(0,))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        rule(f"aten.{name}.Scalar", "*b -> *b")
        rule(f"aten.{name}.Tensor", "*b, *b -> *b")
    for name in ("__and__.Tensor", "__or__.Tensor", "logical_and.default", "logical_or.default", "bitwise_and.Tensor",
                 "bitwise_or.Tensor", "remainder.Tensor", "floor_divide.default"):  # fmt: skip
        rule(f"aten.{name}", "*b, *b -> *b")
    for name in ("logical_not.default", "bitwise_not.default", "sign.default", "floor.default", "ceil.default",
                 "isnan.default", "isinf.default", "zeros_like.default", "ones_like.default", "full_like.default",
                 "remainder.Scalar", "floor.default", "round.default"):  # fmt: skip
        rule(f"aten.{name}", "*b -> *b")
    rule("autopar.detach", "*b -> *b", partial="0")
    rule("aten.to.dtype", "cast", backward=1.0, uneven=(RESULT,))
    rule("aten.where.self", "*b, *b, *b -> *b", saves=(0,))
    for name in ("where.ScalarSelf", "where.ScalarOther"):
        rule(f"aten.{name}", "*b, *b -> *b", saves=(0,))
    rule("aten.where.Scalar", "*b -> *b")
    rule("aten.masked_fill.Scalar", "*b, *b -> *b", saves=(1,))
    rule("aten.masked_fill.Tensor", "*b, *b, -> *b", saves=(1,))
    rule("aten.dropout.default", "*b -> *b", saves=("r",))


def network_rows(rule: Rule) -> None:
    for name, spec, work in (
        ("linear", "*b k, n k -> *b n", "2 *b k n"),
        ("matmul", "*b m k, *b k n -> *b m n", "2 *b m k n"),
    ):
        rule(f"aten.{name}.default", spec, partial="0|1", flops=work, saves=(0, 1), crossed=True, op_class="matmul",
         uneven=("n",))  # fmt: skip
    rule("aten.scaled_dot_product_attention.default", "attention", flops="4 b* g h sq sk d", backward=2.5,
         saves=(0, 1, 2, "r"), op_class="attention", contiguous=("sq",))  # fmt: skip
    rule(
        "aten.embedding.default",
        "embedding",
        backward=1.0,
        saves=(1,),
        op_class="embedding",
        contiguous=("v",),
        uneven=("v",),
        classes=True,
    )
    rule("aten.layer_norm.default", "layer_norm", saves=(0,), op_class="reduction")
    rule("aten.rms_norm.default", "layer_norm", saves=(0,), op_class="reduction")
    for name in ("softmax.int", "_softmax.default", "_safe_softmax.default", "log_softmax.int"):
        rule(f"aten.{name}", "along_dim", saves=("r",), op_class="reduction")
    rule("aten.cumsum.default", "along_dim", backward=1.0, op_class="reduction")
    rule("aten.cumprod.default", "along_dim", op_class="reduction")


def view_rows(rule: Rule) -> None:
    for name in ("reshape", "permute", "expand"):
        rule(f"aten.{name}.default", name, backward=1.0, op_class="view")
    rule("autopar.as_complex", "*b !c -> *b", partial="0", backward=1.0, op_class="view")
    rule("aten.view_as_real.default", "*b -> *b !c", partial="0", backward=1.0, op_class="view")
    rule("aten.split_with_sizes.default", "split", backward=1.0, op_class="view")
    rule("aten.slice.Tensor", "slice_dim", backward=1.0, op_class="view")
    for name in ("cat", "slice_scatter"):
        rule(f"aten.{name}.default", "slice_dim", backward=1.0)
    rule("aten.diff.default", "diff", backward=1.0)
    rule("aten.index_select.default", "index_select", saves=(1,))
    rule("aten.pad.default", "pad", backward=1.0)
    rule("aten.constant_pad_nd.default", "pad", backward=1.0)
    rule("aten.gather.default", "gather", saves=(1,))
    for name in ("arange.default", "arange.start", "arange.start_step", "zeros.default",
                 "ones.default", "scalar_tensor.default", "eye.default", "new_ones.default",
                 "new_zeros.default", "new_full.default"):  # fmt: skip
        rule(f"aten.{name}", "replicated")
