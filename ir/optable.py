"""The op table: one row an operation, its sharding rule and what it costs.

An operation without a row runs as a replicated island, with a warning that names it. Rules that users
register (``ir/registry.py``) stand beside the table and win over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.ir import derive_delta_rule, derive_experts, derive_index, derive_spatial  # noqa: F401  (they register derivations)
from autopar.ir.derive import DERIVATIONS
from autopar.ir.errors import IRError, UsageError
from autopar.ir.graph import Node
from autopar.ir.registry import REGISTERED
from autopar.ir.rows_common import arithmetic_rows, network_rows, view_rows
from autopar.ir.rows_pointwise import index_rows, pointwise_rows, reduction_rows
from autopar.ir.rows_program import cross_entropy_rows, delta_rule_rows, expert_rows, state_rows
from autopar.ir.rows_spatial import spatial_rows
from autopar.ir.rules import ALL, RESULT, NodeRule, Row, instantiate, parse_side, partial_sets

TABLE: dict[str, Row] = {}
# Nothing is known of such an operation: it is taken to keep all it reads and writes.
ISLAND = Row(target="", spec="replicated", op_class="island", saves=(ALL,))
# Operations that exist in lowered programs only, and those whose rows they are priced by.
LOCAL_FORMS = {
    "autopar.sdpa_rows": "aten.scaled_dot_product_attention.default",
    "autopar.embedding_shard": "aten.embedding.default",
}
# Results never carry a gradient, whatever their operands.
NO_GRADIENT = (
    "autopar.detach", "autopar.row_max", "autopar.count_targets", "aten.zeros_like.default", "aten.ones_like.default",
    "aten.full_like.default", "aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default",
)  # fmt: skip


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


def local_row(node: Node) -> Row:
    """The row of an operation of a lowered program."""
    target = LOCAL_FORMS.get(node.target)
    return row(node) if target is None else TABLE[target]


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
                   uneven=_uneven(entry, found), classes=entry.classes, view=entry.op_class == "view")  # fmt: skip


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


for rows in (arithmetic_rows, network_rows, view_rows, state_rows, cross_entropy_rows, expert_rows, delta_rule_rows,
             pointwise_rows, reduction_rows, index_rows, spatial_rows):  # fmt: skip
    rows(rule)
