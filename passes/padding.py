"""Whether rows can be added to a batch without a trace in the loss, and which labels leave them out.

They can if rows never meet but in cross-entropies and the counts of their targets, and every target comes
straight from an input, where the index that is ignored can be written. So, node by node along the batch:

    a factor of the batch in operands and results     rows stay apart
    contracted by a cross-entropy or its count        an added row counts for nothing
    contracted by anything else, or needed whole      refused, with the node
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.ir.graph import ASSIGN, SOURCES, Graph, Node
from autopar.ir.padding import Padding
from autopar.ir.rules import Dim, NodeRule
from autopar.passes.build import Model
from autopar.passes.positions import Mark, Positions, flat_operands, node_key, positions
from autopar.passes.prepare import needed_for

# Position of the target among the operands.
LOSSES = {
    "autopar.cross_entropy": 1, "autopar.cross_entropy_stats": 1, "autopar.cross_entropy_from_stats": 1,
    "autopar.count_targets": 0,
}  # fmt: skip
# What moves labels and leaves every value as it is.
MOVES = (
    "aten.reshape.default", "aten.permute.default", "aten.expand.default", "aten.slice.Tensor", "aten.to.dtype",
    "autopar.detach",
)  # fmt: skip
FILLS = ("aten.pad.default", "aten.constant_pad_nd.default")


class _Refused(Exception):
    """Rows cannot be added; the text says why."""


def padding_of(model: Model) -> Padding:
    """How to pad a batch of this model."""
    batch = tuple(name for name, (dim, _) in model.settings.inputs.items() if dim == 0)
    try:
        labels = _labels(model)
        _check_rows(model, positions(model.graph, model.rules, model.settings.inputs))
        _check_label_uses(model, labels)
        _check_divisors(model, batch)
    except _Refused as refused:
        return Padding(batch=batch, refused=str(refused))
    return Padding(batch=batch, labels=labels)


def _live(model: Model) -> Iterator[tuple[Graph, Node]]:
    """The operations that the loss or a buffer that changes depends on."""
    wanted = _wanted(model)
    for part in (*model.graph.blocks, model.graph):
        for node in part.nodes:
            if node.target not in (*SOURCES, "call") and (part is not model.graph or node.results[0].name in wanted):
                yield part, node


def _wanted(model: Model) -> frozenset[str]:
    """First results of the main graph's nodes that training computes."""
    changed = [node.results[0].name for node in model.graph.nodes if node.target == ASSIGN]
    return model.live.union(*(needed_for(model.graph, name) for name in changed))


def _labels(model: Model) -> dict[str, int]:
    found: dict[str, int] = {}
    for part, node in _live(model):
        if node.target in LOSSES:
            ignored = int(str(node.attr("ignore_index", -100)))
            name = _input_behind(part, flat_operands(node)[LOSSES[node.target]], ignored)
            if name is None or model.settings.inputs[name][0] != 0:
                raise _Refused(f"the targets of {_shown(node)} are computed, not an input of the batch")
            if found.setdefault(name, ignored) != ignored:
                raise _Refused(f"two losses ignore different values of {name}: {found[name]} and {ignored}")
    if not found:
        raise _Refused("no loss of the model leaves rows out: only a cross-entropy with ignore_index does")
    return found


def _input_behind(part: Graph, name: str | None, ignored: int) -> str | None:
    """The input that a value is moved from, anything added on the way being ignored as well."""
    producers = part.producers()
    while name is not None and (node := producers[name]).target != "input":
        fills = node.target in FILLS and node.attr("value") == ignored
        if node.target not in MOVES and not fills:
            return None
        name = flat_operands(node)[0]
    return None if name is None or part.name != "main" else str(producers[name].attr("name"))


def _check_rows(model: Model, found: Positions) -> None:
    for part, node in _live(model):
        rule = model.rules[node_key(part, node)]
        for name, dims in zip(flat_operands(node), rule.operands, strict=True):
            if name is None:
                continue
            for marks, dim in zip(found.marks[part.name, name], dims, strict=True):
                for factor in _of_batch(rule, marks, dim):
                    _check_factor(node, rule, factor)


def _of_batch(rule: NodeRule, marks: tuple[Mark, ...], dim: Dim) -> list[str]:
    """The factors of a dim that have a part in the batch."""
    spans = [(start, start * size) for label, start, size in marks if label == "batch"]
    found = []
    for factor in dim:
        start = rule.start(dim, factor)
        if any(start < high and low < start * rule.sizes[factor] for low, high in spans):
            found.append(factor)
    return found


def _check_factor(node: Node, rule: NodeRule, factor: str) -> None:
    if factor in rule.whole:
        raise _Refused(f"{_shown(node)} needs all rows of the batch together")
    kept = all(any(factor in dim for dim in dims) for dims in rule.results)
    if not kept and node.target not in LOSSES:
        raise _Refused(f"{_shown(node)} adds up the rows of the batch, and no label leaves one out")


def _check_label_uses(model: Model, labels: dict[str, int]) -> None:
    """A label that is also an index or a number to compute with would be given a value that means nothing."""
    wanted = _wanted(model)
    carried = {node.result.name for node in model.graph.sources("input") if str(node.attr("name")) in labels}
    for node in model.graph.nodes:
        if node.results[0].name not in wanted:
            continue
        used = [at for at, name in enumerate(flat_operands(node)) if name in carried]
        if used and node.target in (*MOVES, *FILLS):
            carried.update(value.name for value in node.results)
        elif used and LOSSES.get(node.target) not in used:
            raise _Refused(f"{_shown(node)} computes with the labels")


def _check_divisors(model: Model, batch: tuple[str, ...]) -> None:
    """A number that may be the planned count of rows, written behind a loss as it was traced."""
    rows = min(node.result.type.shape[0] for node in model.graph.sources("input") if str(node.attr("name")) in batch)
    producers = model.graph.producers()
    behind: set[str] = set()
    for part, node in _live(model):
        if part is not model.graph or (node.target not in LOSSES and behind.isdisjoint(node.uses())):
            continue
        behind.update(value.name for value in node.results)
        made = [producers[name] for name in node.uses()]
        numbers = [node.attr("other"), *(n.attr("fill_value") for n in made if n.target == "aten.full.default")]
        for number in numbers:
            if isinstance(number, (int, float)) and number >= rows and number % rows == 0:
                raise _Refused(f"{_shown(node)} has the number {number:g}, which may count the planned rows")


def _shown(node: Node) -> str:
    return f"{node.target} at {node.source}" if node.source else node.target
