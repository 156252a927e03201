"""Example calls of every operation in the op table: shapes with primes, ones and compound dims."""

from __future__ import annotations

from autopar.ir.types import Attr
from tests.rules.example import Example, Operand, bools, call, f, fixed, ints, pairs, positive
from tests.rules.examples_indexing import INDEXING
from tests.rules.examples_spatial import SPATIAL

EXAMPLES: list[Example] = [*SPATIAL, *INDEXING]


def ex(target: str, *operands: Operand, **attrs: Attr) -> None:
    EXAMPLES.append(call(target, *operands, **attrs))


def _pointwise() -> None:
    for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"):
        second = positive if name.startswith("div") else f
        ex(f"aten.{name}", f(12, 5), second(12, 5))
        ex(f"aten.{name}", f(4, 1, 6), second(3, 1))
        ex(f"aten.{name}", f(1, 12), second(12))
        ex(f"aten.{name}", f(4, 6), other=1.5)
    ex("aten.add.Tensor", f(4, 6), f(4, 6), alpha=2)
    ex("aten.sub.Tensor", f(12), f(12), alpha=0.5)
    ex("aten.mul.Tensor", f(12, 2), bools(12, 1))
    ex("aten.mul.Tensor", ints(5, 12), ints(5, 12))
    ex("aten.add.Tensor", ints(5, 4, 3), ints(5, 3))
    for name in ("minimum", "maximum", "atan2"):
        ex(f"aten.{name}.default", f(12, 5), f(12, 5))
        ex(f"aten.{name}.default", f(4, 1, 6), f(3, 1))
    for name in ("neg", "relu", "tanh", "sigmoid", "exp", "silu", "gelu", "abs", "cos", "sin", "erf", "softplus",
                 "leaky_relu", "elu", "hardtanh", "mish", "square", "sign", "floor", "ceil", "round", "isnan", "isinf",
                 "zeros_like", "ones_like"):  # fmt: skip
        ex(f"aten.{name}.default", f(12, 1, 5))
    for name in ("rsqrt", "sqrt", "reciprocal", "log", "log1p"):
        ex(f"aten.{name}.default", positive(12, 7))
    ex("aten.gelu.default", f(12), approximate="tanh")
    ex("aten.full_like.default", f(12, 2), fill_value=3.0)
    ex("aten.logical_not.default", bools(12, 5))
    ex("aten.bitwise_not.default", bools(12, 5))
    ex("aten.pow.Tensor_Scalar", positive(4, 6), exponent=2.5)
    ex("aten.pow.Scalar", f(4, 6), self=2.0)
    ex("aten.clamp.default", f(4, 6), min=-0.5, max=0.5)
    ex("aten.clamp_min.default", f(4, 6), min=0.1)
    ex("aten.remainder.Scalar", positive(4, 6), other=0.7)
    ex("aten.remainder.Tensor", positive(4, 6), positive(6))
    ex("aten.floor_divide.default", ints(30, 4, 6), fixed(6))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        ex(f"aten.{name}.Scalar", ints(3, 12, 5), other=1)
        ex(f"aten.{name}.Tensor", ints(3, 12, 5), ints(3, 5))
    for name in ("__and__.Tensor", "__or__.Tensor", "logical_and.default", "logical_or.default", "bitwise_and.Tensor",
                 "bitwise_or.Tensor"):  # fmt: skip
        ex(f"aten.{name}", bools(12, 1), bools(4))
    ex("autopar.detach", f(12, 5))
    ex("autopar.sloped", f(12, 5), f(12, 5), fixed(12, 5))
    ex("aten.polar.default", positive(12, 5), f(12, 5))
    ex("aten.polar.default", positive(1), f(4, 6))
    for name in ("add", "sub", "mul", "div"):
        ex(f"aten.{name}.Tensor", pairs(12, 1, 5), pairs(4, 1))
        ex(f"aten.{name}.Tensor", f(4, 6), pairs(6))
    ex("aten.mul.Tensor", pairs(4, 6), f(4, 6))
    ex("aten.neg.default", pairs(4, 6))
    ex("aten.to.dtype", f(12, 5), dtype="f64")
    ex("aten.to.dtype", ints(9, 12), dtype="f64")
    ex("aten.where.self", bools(12, 1), f(12, 4), f(4))
    ex("aten.where.ScalarSelf", bools(12, 1), f(4), self=-1.0)
    ex("aten.where.ScalarOther", bools(12, 1), f(12, 4), other=2.0)
    ex("aten.where.Scalar", bools(12, 5), self=1.0, other=0.0)
    ex("aten.masked_fill.Scalar", f(12, 4), bools(12, 1), value=-2.0)
    ex("aten.masked_fill.Tensor", f(12, 4), bools(4), f())
    ex("aten.dropout.default", f(12, 4), p=0.0, train=True)


def _products() -> None:
    ex("aten.linear.default", f(4, 6, 12), f(12, 12))
    ex("aten.linear.default", f(7, 4), f(6, 4))
    ex("aten.linear.default", f(1, 12), f(5, 12))
    ex("aten.matmul.default", f(4, 12), f(12, 6))
    ex("aten.matmul.default", f(3, 1, 2, 12), f(4, 12, 1))
    ex("aten.matmul.default", f(12, 1, 6, 5), f(1, 4, 5, 7))
    ex("aten.matmul.default", f(2, 4, 3), f(3, 8))
    sdpa = "aten.scaled_dot_product_attention.default"
    ex(sdpa, f(2, 12, 12, 4), f(2, 12, 12, 4), f(2, 12, 12, 6), is_causal=True)
    ex(sdpa, f(4, 12, 6, 2), f(4, 3, 6, 2), f(4, 3, 6, 2), is_causal=True, enable_gqa=True)
    ex(sdpa, f(2, 12, 8, 3), f(2, 1, 8, 3), f(2, 1, 8, 3), enable_gqa=True, scale=0.3)
    ex(sdpa, f(2, 4, 12, 4), f(2, 4, 7, 4), f(2, 4, 7, 4))
    ex(sdpa, f(2, 3, 12, 4), f(2, 3, 7, 4), f(2, 3, 7, 4), is_causal=True)
    ex(sdpa, f(1, 2, 4, 4), f(1, 2, 9, 4), f(1, 2, 9, 4), is_causal=True, scale=0.7)
    for mask in ((2, 4, 12, 6), (2, 1, 1, 6), (1, 4, 1, 6), (12, 6), (1, 1, 12, 6)):
        ex(sdpa, f(2, 4, 12, 3), f(2, 4, 6, 3), f(2, 4, 6, 3), f(*mask))
    ex(sdpa, f(2, 4, 6, 3), f(2, 2, 6, 3), f(2, 2, 6, 3), f(2, 4, 6, 6), enable_gqa=True)
    ex(sdpa, f(12, 12, 3), f(12, 12, 3), f(12, 12, 3), is_causal=True)
    ex("aten.embedding.default", f(12, 6), ints(12, 4, 5))
    ex("aten.embedding.default", f(24, 4), ints(24, 12), padding_idx=13)
    ex("aten.embedding.default", f(7, 12), ints(7, 4), padding_idx=0)
    ex("aten.embedding.default", f(12, 5), ints(12, 1, 4), padding_idx=-1)
    ex("aten.embedding.default", f(4, 6), ints(4, 12), scale_grad_by_freq=True)


def _reductions() -> None:
    ex("aten.layer_norm.default", f(4, 6, 12), f(12), f(12), normalized_shape=(12,))
    ex("aten.layer_norm.default", f(12, 3, 4), f(3, 4), None, normalized_shape=(3, 4), eps=0.1)
    ex("aten.layer_norm.default", f(12, 5), normalized_shape=(5,))
    ex("aten.rms_norm.default", f(4, 6, 12), f(12), normalized_shape=(12,), eps=1e-6)
    for name in ("softmax.int", "_safe_softmax.default", "log_softmax.int"):
        ex(f"aten.{name}", f(4, 6, 12), dim=-1)
        ex(f"aten.{name}", f(4, 12, 5), dim=1)
    ex("aten._softmax.default", f(12, 4), dim=1, half_to_float=False)
    ex("aten.cumsum.default", f(12, 4), dim=0)
    ex("aten.cumprod.default", positive(12, 4), dim=1)
    ex("aten.sum.dim_IntList", f(4, 6, 12), dim=(1,))
    ex("aten.sum.dim_IntList", f(4, 6, 12), dim=(-1, 0), keepdim=True)
    ex("aten.sum.dim_IntList", ints(4, 12, 5), dim=(0,))
    ex("aten.sum.dim_IntList", bools(12, 4), dim=(0, 1))
    ex("aten.sum.default", f(12, 1, 5))
    for name in ("amax.default", "amin.default"):
        ex(f"aten.{name}", f(4, 12), dim=(-1,))
        ex(f"aten.{name}", f(12, 4), dim=(0,), keepdim=True)
    for name in ("any.dim", "all.dim"):
        ex(f"aten.{name}", bools(12, 4), dim=1)
    for name in ("var.correction", "std.correction"):
        ex(f"aten.{name}", f(12, 4), dim=(1,), keepdim=True)
        ex(f"aten.{name}", f(12, 4), dim=(0,), correction=0)


def _views() -> None:
    def reshape(before: tuple[int, ...], after: tuple[int, ...]) -> None:
        ex("aten.reshape.default", f(*before), shape=after)

    reshape((4, 6, 24), (4, 6, 4, 6))
    reshape((4, 6, 12), (24, 12))
    reshape((24, 5), (2, 12, 5))
    reshape((12,), (1, 12, 1))
    reshape((1, 12, 1), (12,))
    reshape((6, 4), (4, 6))
    reshape((6, 10), (15, 4))
    reshape((2, 3, 4, 5), (6, 20))
    reshape((8, 1, 12), (4, 2, 3, 4))
    reshape((1,), ())
    reshape((8, 3, 0), (24, 0))
    reshape((8, 0), (8, 3, 0))
    reshape((8, 0, 12), (8, 0, 3, 4))
    reshape((8, 0, 3, 4), (8, 0, 12))
    reshape((8, 0), (8, 0, 4))
    reshape((8, 0, 12), (8, 1, 0, 12))
    ex("aten.permute.default", f(4, 1, 12), dims=(2, 0, 1))
    ex("aten.permute.default", f(2, 3, 4, 5), dims=(0, 2, 1, 3))
    ex("aten.expand.default", f(4, 1, 6), size=(4, 12, 6))
    ex("aten.expand.default", f(5), size=(12, 5))
    ex("aten.expand.default", f(1, 1), size=(2, 12, 4))
    ex("aten.split_with_sizes.default", f(4, 36), split_sizes=(12, 12, 12), dim=1)
    ex("aten.split_with_sizes.default", f(4, 12), split_sizes=(2, 4, 6), dim=-1)
    ex("aten.split_with_sizes.default", f(12, 4), split_sizes=(4, 8), dim=0)
    ex("aten.split_with_sizes.default", f(12, 2), split_sizes=(1, 1), dim=1)
    ex("aten.split_with_sizes.default", f(24, 5), split_sizes=(12, 12))
    ex("aten.split_with_sizes.default", f(12, 5), split_sizes=(12,))
    ex("aten.slice.Tensor", f(12, 12), dim=1, start=3, end=9)
    ex("aten.slice.Tensor", f(12, 4), dim=-1, start=0, end=3, step=2)
    ex("aten.slice.Tensor", f(4, 12), start=1, end=2)
    ex("aten.slice_scatter.default", f(12, 7), f(12, 2), dim=1, start=1, end=6, step=3)
    ex("aten.slice_scatter.default", f(5, 4), f(3, 4), step=2)
    ex("aten.cat.default", (f(12, 2), f(12, 3)), dim=1)
    ex("aten.cat.default", (f(4, 12), f(4, 12), f(4, 12)))
    ex("aten.index_select.default", f(12, 5), ints(5, 4), dim=1)
    ex("aten.index_select.default", f(5, 12), ints(5, 12), dim=0)
    ex("aten.pad.default", f(12, 5), pad=(1, 2), mode="constant")
    ex("aten.constant_pad_nd.default", f(4, 12), pad=(2, 0, 0, 0), value=7.0)
    ex("aten.constant_pad_nd.default", f(4, 12), pad=(0, 0, 1, 1))
    ex("aten.constant_pad_nd.default", f(4, 12), pad=(0, 0, 1, -1))
    ex("aten.pad.default", f(4, 12), pad=(-2, 2), mode="constant")
    ex("aten.gather.default", f(12, 5), ints(5, 12, 3), dim=1)
    ex("aten.gather.default", f(6, 12), ints(6, 4, 12), dim=0)
    ex("aten.gather.default", f(12, 4), ints(4, 6, 4), dim=-1)


def _complex_views() -> None:
    ex("autopar.as_complex", f(12, 5, 2))
    ex("autopar.as_complex", f(2))
    ex("aten.view_as_real.default", pairs(12, 5))
    ex("aten.reshape.default", pairs(12, 5), shape=(3, 4, 5))
    ex("aten.permute.default", pairs(12, 5), dims=(1, 0))
    ex("aten.expand.default", pairs(12, 1), size=(12, 4))
    ex("aten.slice.Tensor", pairs(5, 12), dim=0, start=1, end=4)
    ex("aten.cat.default", (pairs(3, 12), pairs(2, 12)), dim=0)
    ex("aten.index.Tensor", pairs(5, 12), (ints(5, 12),))


def _whole() -> None:
    ex("aten.arange.default", end=12, dtype="i64")
    ex("aten.arange.start", start=3, end=9, dtype="i64")
    ex("aten.arange.start_step", start=0, end=12, step=3, dtype="i64")
    ex("aten.zeros.default", size=(12,), dtype="f64")
    ex("aten.ones.default", size=(12,), dtype="f64")
    ex("aten.scalar_tensor.default", s=2.5, dtype="f64")
    ex("aten.eye.default", n=4, dtype="f64")
    ex("aten.diff.default", f(12, 4))
    ex("aten.new_ones.default", f(12), size=(3, 4))
    ex("aten.new_zeros.default", f(12), size=(3, 4))
    ex("aten.new_full.default", f(12), size=(3, 4), fill_value=2.0)


def _losses() -> None:
    ex("autopar.row_max", f(4, 6, 12))
    ex("autopar.row_max", f(5, 12))
    stats = "autopar.cross_entropy_stats"
    ex(stats, f(4, 6, 12), ints(12, 4, 6), fixed(4, 6), ignore_index=3)
    ex(stats, f(7, 12), ints(12, 7), fixed(7))
    ex(stats, f(7, 12), ints(12, 7), fixed(7), label_smoothing=0.2, classes=12)
    ex(stats, f(4, 12), ints(12, 4), fixed(4), fixed(12), ignore_index=2)
    ex(stats, f(2, 5, 12), ints(12, 2, 5), fixed(2, 5), fixed(12), label_smoothing=0.1, classes=12)
    ex("autopar.soft_cross_entropy_stats", f(4, 12), f(4, 12), fixed(4))
    ex("autopar.soft_cross_entropy_stats", f(4, 3, 12), fixed(4, 3, 12), fixed(4, 3), fixed(12), label_smoothing=0.1,
       classes=12)  # fmt: skip
    ex("autopar.cross_entropy_from_stats", positive(4, 6, 2), ints(12, 4, 6), ignore_index=3)
    ex("autopar.cross_entropy_from_stats", positive(4, 3), ints(12, 4))
    ex("autopar.cross_entropy_rows_from_stats", positive(4, 6, 2), ints(12, 4, 6), ignore_index=3)
    ex("autopar.cross_entropy_rows_from_stats", positive(4, 6, 3))
    for name in ("cross_entropy", "cross_entropy_rows"):
        ex(f"autopar.{name}", f(4, 6, 12), ints(12, 4, 6), ignore_index=3)
        ex(f"autopar.{name}", f(12, 5), ints(5, 12), fixed(5), label_smoothing=0.1)
    ex("autopar.soft_cross_entropy_rows", f(4, 12), f(4, 12))
    ex("autopar.soft_cross_entropy_rows", f(4, 3, 12), fixed(4, 3, 12), fixed(12), label_smoothing=0.1)
    ex("autopar.count_targets", ints(4, 12, 5), ignore_index=2)
    ex("autopar.count_targets", ints(4, 12), fixed(4), ignore_index=2)


def _experts() -> None:
    ex("autopar.experts", f(12, 4), ints(12, 12, 2), f(12, 2), f(12, 8, 4), f(12, 4, 4), gate="silu-glu")
    ex("autopar.experts", f(6, 4), ints(4, 6, 3), f(6, 3), f(4, 4, 24), f(4, 12, 4), f(4, 24),
       gate="silu-glu pairs alpha=1.702 limit=7.0 shift=1.0", transposed=True)  # fmt: skip
    ex("autopar.experts", f(5, 3), ints(4, 5, 1), f(5, 1), f(4, 6, 3), f(4, 3, 6), None, gate="relu2")
    ex("autopar.experts", f(4, 1), ints(1, 4, 2), f(4, 2), f(1, 12, 1), f(1, 1, 12), f(1, 12), gate="gelu")
    ex("autopar.expert_bias", ints(12, 6, 2), f(6, 2), f(12, 4))
    ex("autopar.expert_bias", ints(3, 4, 1), f(4, 1), f(3, 6))


def _delta_rules() -> None:
    """The model's function is one in float64, of a decay a head or a channel, with grouped heads or without."""
    how: dict[str, Attr] = {"function": "tests.linear.plain.bounded", "chunk": 64, "normalized": True}
    for keys, values, channels in (((2, 4, 6, 3), 12, ()), ((4, 3, 2, 2), 2, (2,)), ((1, 5, 1, 4), 6, ())):
        heads = (*keys[:2], values)
        ex("autopar.delta_rule", f(*keys), f(*keys), f(*heads, 5), f(*heads, *channels), f(*heads), **how)


def _draws() -> None:
    """The last operand is the state of the random numbers."""
    for shape in ((12, 1, 5), (4, 6), (12,), (2, 3, 4, 6)):
        ex("autopar.dropout", f(*shape), ints(1000, 4), p=0.3, site=2)
        ex("autopar.uniform", ints(1000, 4), shape=shape, site=1)
    ex("autopar.dropout", f(12, 7), ints(1000, 4), p=0.0)
    ex("autopar.normal", ints(1000, 4), shape=(12, 5))
    ex("autopar.advance", ints(1000, 4), by=3)


for group in (_pointwise, _products, _reductions, _views, _complex_views, _whole, _losses, _experts, _delta_rules,
              _draws):  # fmt: skip
    group()

# Rows that cannot be run by themselves, and why.
NOT_RUN = {
    "autopar.sdpa_dropout": "draws with a seed of its own on every device: no plan draws what another does",
    "autopar.assign": "writes a buffer that the program stores; tests/state trains with it",
}
