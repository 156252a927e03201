"""Cross-entropy in the three parts that may be sharded over classes, and back again.

    %m = autopar.row_max(%logits)                       Partial(max) where the classes are sharded
    %s = autopar.cross_entropy_stats(%logits, %t, %m, %weight?)    Partial(sum): two or three sums over classes
    %l = autopar.cross_entropy_from_stats(%s, %t)       the sum of all rows, or each row

``open_losses`` before strategies are made, ``fuse`` after lowering: where no axis took the classes the
three become one fused cross-entropy again. Label smoothing, class weights (sharded with the classes) and
probabilities as targets only change the sums (``runtime/cross_entropy.py``).
"""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.graph import Graph, Node, Value
from autopar.ir.losses import FORMS, ROW_MAX, opened
from autopar.passes.facts import facts


def open_losses(graph: Graph) -> Graph:
    """Every cross-entropy becomes its three parts, unless its class weights are trained."""
    types = {name: value.type for name, value in graph.values().items()}
    forms = {form.whole: form for form in FORMS}
    trained = {name for (part, name), fact in facts(graph).items() if part == graph.name and fact.grad}
    nodes: list[Node] = []
    for node in graph.nodes:
        form = forms.get(node.target)
        opens = form is not None and not (len(node.operands) > 2 and node.operands[2] in trained)
        nodes += opened(node, form, types) if form is not None and opens else [node]
    blocks = tuple(open_losses(block) for block in graph.blocks)
    return replace(graph, nodes=tuple(nodes), blocks=blocks)


def fuse(graph: Graph) -> Graph:
    """Undo ``open_losses`` where the classes are whole on every device."""
    producers, consumers, values = graph.producers(), graph.consumers(), graph.values()
    forms = {(form.stats, form.last): form for form in FORMS}
    dead: set[str] = set()
    fused: dict[str, Node] = {}
    for node in graph.nodes:
        stats = producers.get(str(node.operands[0])) if node.operands else None
        form = forms.get((stats.target, node.target)) if stats is not None else None
        if stats is None or form is None or _split(values[str(stats.operands[0])]):
            continue
        logits, target, top_name, *weight = stats.operands
        top = producers[str(top_name)]
        alone = len(consumers[stats.result.name]) == len(consumers[top.results[0].name]) == 1
        if top.target == ROW_MAX and alone and top.operands[0] == logits:
            attrs = {key: value for key, value in stats.attrs if key in ("ignore_index", "label_smoothing")}
            if node.result.type.dtype != values[str(logits)].type.dtype:
                attrs["dtype"] = node.result.type.dtype
            fused[node.result.name] = replace(
                node, target=form.whole, operands=(logits, target if form.soft else node.operands[1], *weight),
                attrs=tuple(sorted(attrs.items())),
            )  # fmt: skip
            dead |= {stats.result.name, top.results[0].name}
    kept = [n for n in graph.nodes if n.results[0].name not in dead]
    return replace(graph, nodes=tuple(fused.get(n.results[0].name, n) for n in kept))


def _split(logits: Value) -> bool:
    """Whether an axis has taken the classes."""
    return logits.layout is not None and bool(logits.layout.owners(len(logits.type.shape) - 1))
