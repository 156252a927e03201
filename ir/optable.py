"""The op table: one row an operation, its sharding rule and what it costs.

An operation without a row runs as a replicated island, with a warning that names it. Rules that users
register (``ir/registry.py``) stand beside the table and win over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.ir import derive_index, derive_spatial  # noqa: F401  (they register derivations)
from autopar.ir.derive import DERIVATIONS
from autopar.ir.errors import IRError, UsageError
from autopar.ir.graph import Node
from autopar.ir.registry import REGISTERED
from autopar.ir.rows_pointwise import index_rows, pointwise_rows, reduction_rows
from autopar.ir.rows_spatial import spatial_rows
from autopar.ir.rules import ALL, RESULT, NodeRule, Row, instantiate, parse_side, partial_sets

TABLE: dict[str, Row] = {}
# Nothing is known of such an operation: it is taken to keep all it reads and writes.
ISLAND = Row(target="", spec="replicated", op_class="island", saves=(ALL,))


def rule(target: str, spec: str, **columns: object) -> None:
    """Add a row; a second row for the same target replaces the first."""
    if spec not in DERIVATIONS:
        if "->" not in spec:
            raise UsageError(f"rule for {target}: {spec!r} has no '->'")
        for side in spec.split("->"):
            parse_side(side)
    TABLE[target] = Row(target=target, spec=spec, **columns)  # type: ignore[arg-type]


def row(node: Node) -> Row:
    """The node's row, or that of an island."""
    return REGISTERED.get(node.target) or TABLE.get(node.target, ISLAND)


def node_rule(
    node: Node, operands: Sequence[tuple[int, ...] | None], results: Sequence[tuple[int, ...]], *,
    given: Row | None = None,
) -> NodeRule:  # fmt: skip
    """The rule of ``node`` for the global shapes of its flattened operands (None: absent) and results.

    ``given`` stands for the node's own row. Raises UsageError where the rule is a user's and does not fit.
    """
    entry = given or row(node)
    if entry.spec in DERIVATIONS:
        found = DERIVATIONS[entry.spec](node, operands, results)
    else:
        try:
            found = instantiate(entry.spec, operands, results)
        except IRError as error:
            if given is not None or node.target in REGISTERED:
                raise UsageError(_misfit(node, entry, error, operands, results)) from None
            raise IRError(f"{node.results[0].name} = {node.target}: {error}") from None
    partial = partial_sets(entry.partial) or found.partial
    return replace(found, partial=partial, reduce=entry.reduce, contiguous=entry.contiguous,
                   uneven=_uneven(entry, found), classes=entry.classes)  # fmt: skip


def _uneven(entry: Row, found: NodeRule) -> tuple[str, ...]:
    """Factors that may be padded: each alone in every dim that holds it."""
    dims = [dim for side in (*found.operands, *found.results) for dim in side]
    kept = {factor for dim in found.results[0] for factor in dim} if RESULT in entry.uneven else set(entry.uneven)
    return tuple(f for f in found.sizes if f in kept and all(dim == (f,) for dim in dims if f in dim))


def _misfit(
    node: Node, entry: Row, error: Exception, operands: Sequence[tuple[int, ...] | None],
    results: Sequence[tuple[int, ...]],
) -> str:  # fmt: skip
    """What a user reads whose rule contradicts the shapes that the model gives its operation."""
    given = ", ".join("none" if shape is None else str(list(shape)) for shape in operands)
    made = ", ".join(str(list(shape)) for shape in results)
    where = f" at {node.source}" if node.source else ""
    return (
        f"the rule registered for {node.target}, {entry.spec!r}, does not fit its use{where}: {error}. "
        f"Operands: {given}; results: {made}"
    )


def _rows() -> None:
    for name in ("add.Tensor", "sub.Tensor"):
        rule(f"aten.{name}", "*b, *b -> *b", partial="0+1", backward=1.0, uneven=(RESULT,))
    rule("aten.mul.Tensor", "*b, *b -> *b", partial="0|1", saves=(0, 1), uneven=(RESULT,))
    rule("aten.div.Tensor", "*b, *b -> *b", partial="0", saves=(0, 1))
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
                 "remainder.Scalar", "floor.default", "round.default", "autopar.detach"):  # fmt: skip
        rule(name if name.startswith("autopar") else f"aten.{name}", "*b -> *b")
    rule("aten.to.dtype", "*b -> *b", backward=1.0, uneven=(RESULT,))
    rule("aten.where.self", "*b, *b, *b -> *b", saves=(0,))
    for name in ("where.ScalarSelf", "where.ScalarOther"):
        rule(f"aten.{name}", "*b, *b -> *b", saves=(0,))
    rule("aten.where.Scalar", "*b -> *b")
    rule("aten.masked_fill.Scalar", "*b, *b -> *b", saves=(1,))
    rule("aten.masked_fill.Tensor", "*b, *b, -> *b", saves=(1,))
    rule("aten.dropout.default", "*b -> *b", saves=("r",))

    for name, spec, work in (
        ("linear", "*b k, n k -> *b n", "2 *b k n"),
        ("matmul", "*b m k, *b k n -> *b m n", "2 *b m k n"),
    ):
        rule(f"aten.{name}.default", spec, partial="0|1", flops=work, saves=(0, 1), op_class="matmul",
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
    for name in ("sum.dim_IntList", "sum.default"):
        rule(f"aten.{name}", "reduction", backward=1.0, op_class="reduction")
    for name in ("amax.default", "amin.default", "any.dim", "all.dim", "var.correction", "std.correction"):
        rule(f"aten.{name}", "nonlinear_reduction", saves=(0,), op_class="reduction")

    for name in ("reshape", "permute", "expand"):
        rule(f"aten.{name}.default", name, backward=1.0, op_class="view")
    rule("aten.split_with_sizes.default", "split", backward=1.0, op_class="view")
    rule("aten.slice.Tensor", "slice_dim", backward=1.0, op_class="view")
    rule("aten.cat.default", "slice_dim", backward=1.0)
    rule("aten.diff.default", "diff", backward=1.0)
    rule("aten.index_select.default", "index_select", saves=(1,))
    rule("aten.pad.default", "pad", backward=1.0)
    rule("aten.constant_pad_nd.default", "pad", backward=1.0)
    rule("aten.gather.default", "gather", saves=(1,))
    for name in ("arange.default", "arange.start", "arange.start_step", "zeros.default",
                 "ones.default", "scalar_tensor.default", "eye.default", "new_ones.default",
                 "new_zeros.default", "new_full.default"):  # fmt: skip
        rule(f"aten.{name}", "replicated")

    # What a program changes besides its results: buffers, whole on every device, after the forward.
    rule("autopar.assign", "assign", partial="0", backward=0.0, op_class="view")

    # Draws by hash: each device knows where its elements stand in the whole. ``!state``: autopar.rng. A word
    # takes 11 passes over 8 bytes an element; a uniform number is made of one or two, a normal one of two or four.
    rule("autopar.dropout", "*b, !state -> *b", partial="0", backward=1.0, saves=("mask",), work_bytes=185)
    rule("autopar.uniform", "!state -> *b", backward=0.0, work_bytes=260)
    rule("autopar.normal", "!state -> *b", backward=0.0, work_bytes=600)
    rule("autopar.sdpa_dropout", "drawn_attention", flops="4 b* g h sq sk d", backward=2.5, saves=(0, 1, 2, "r"),
         op_class="attention", contiguous=("sq",))  # fmt: skip
    rule("autopar.advance", "!state -> !state", op_class="view")

    # The parts of cross-entropy: with the classes sharded, row_max and the stats are Partial on that axis
    # and 3 or 4 numbers a row are reduced; the logits are never gathered.
    rule("autopar.row_max", "*b v -> *b", reduce="max", op_class="loss", backward=0.0, uneven=("v",), classes=True)
    for name, spec, kept in (
        ("cross_entropy_stats", "*b v, *b, *b, v -> *b !stat", (0,)),
        ("soft_cross_entropy_stats", "*b v, *b v, *b, v -> *b !stat", (0, 1)),
    ):
        uneven = () if name.startswith("soft") else ("v",)
        rule(f"autopar.{name}", spec, saves=kept, op_class="loss", contiguous=("v",), uneven=uneven, classes=True)
    for name, spec, kept in (
        ("cross_entropy_from_stats", "*b !stat, *b ->", (0,)),
        ("cross_entropy_rows_from_stats", "*b !stat, *b -> *b", (0,)),
        ("cross_entropy", "*b !v, *b, !v ->", (0,)),
        ("cross_entropy_rows", "*b !v, *b, !v -> *b", (0,)),
        ("soft_cross_entropy_rows", "*b !v, *b !v, !v -> *b", (0, 1)),
    ):
        rule(f"autopar.{name}", spec, saves=kept, op_class="loss")
    rule("autopar.count_targets", "*b, !w ->", backward=0.0, op_class="loss")


_rows()
pointwise_rows(rule)
reduction_rows(rule)
index_rows(rule)
spatial_rows(rule)
