"""Cross-entropy, and the operations that it opens into so that an axis may take its classes (passes/losses.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.ir.graph import Node, Value
from autopar.ir.types import TensorType


@dataclass(frozen=True)
class LossForm:
    """A loss and the two operations behind ``row_max`` that it opens into."""

    whole: str
    stats: str
    last: str
    soft: bool = False  # targets are probabilities: no index, nothing ignored


ROW_MAX = "autopar.row_max"
FORMS = (
    LossForm("autopar.cross_entropy", "autopar.cross_entropy_stats", "autopar.cross_entropy_from_stats"),
    LossForm(
        "autopar.cross_entropy_rows", "autopar.cross_entropy_stats", "autopar.cross_entropy_rows_from_stats"
    ),
    LossForm(
        "autopar.soft_cross_entropy_rows", "autopar.soft_cross_entropy_stats",
        "autopar.cross_entropy_rows_from_stats", soft=True,
    ),
)  # fmt: skip
STATS = frozenset(form.stats for form in FORMS)


def opened(node: Node, form: LossForm, types: Mapping[str, TensorType]) -> list[Node]:
    """The maximum of each row, its sums over the classes, and the loss. ``types``: of the node's operands."""
    logits, target, *weight = node.operands
    assert isinstance(logits, str)
    name, rows = node.result.name, types[logits].shape[:-1]
    top = Value(f"{name}_max", TensorType(types[logits].dtype, rows))
    sums = 3 if weight or form.soft else 2
    stats = Value(f"{name}_stats", TensorType(node.result.type.dtype, (*rows, sums)))
    ignored = {key: value for key, value in node.attrs if key == "ignore_index"}
    smoothing = node.attr("label_smoothing", 0.0)
    given = {**ignored, "label_smoothing": smoothing, "classes": types[logits].shape[-1]} if smoothing else ignored
    return [
        Node(results=(top,), target=ROW_MAX, operands=(logits,), source=node.source),
        Node(results=(stats,), target=form.stats, operands=(logits, target, top.name, *weight),
             attrs=tuple(sorted(given.items())), source=node.source),
        Node(results=node.results, target=form.last, operands=(stats.name,) if form.soft else (stats.name, target),
             attrs=tuple(sorted(ignored.items())), source=node.source),
    ]  # fmt: skip
