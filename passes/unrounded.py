"""Numbers that a model returns as they are before they are rounded to a coarser type.

Microbatches and devices each have a summand of a loss: these are added up in the finer type, which autocast returns
too. A loss may be a weighted sum of terms, some of them rounded: all of it is worked out in the finer type.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autopar.ir.graph import Graph, Node, Value, renamed
from autopar.ir.types import DTYPE_BYTES

CAST = "aten.to.dtype"
THROUGH = (
    CAST, "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default",
    "autopar.detach",
)  # fmt: skip


def unrounded(graph: Graph) -> Graph:
    """The graph with each of its outputs that is a single number unrounded.

    What it is worked out from stays where it is, for others that use it as it is.
    """
    found = _Finer(graph)
    outputs = tuple(map(found.of, graph.outputs))
    nodes: list[Node] = []
    for node in graph.nodes:
        finer = found.made.get(node.results[0].name)
        nodes += [node] if finer is None else [node, finer]
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


@dataclass(eq=False)
class _Finer:
    """``names``: of values what is the same but finer, or themselves. ``made``: what that comes from, by the node that
    it stands behind."""

    graph: Graph
    names: dict[str, str] = field(default_factory=dict)
    made: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers, self.values = self.graph.producers(), self.graph.values()

    def of(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = self._of(name)
        return self.names[name]

    def _of(self, name: str) -> str:
        node, used = self.producers[name], tuple(self.producers[name].uses())
        if node.target not in THROUGH or not all(map(self._is_number, (name, *used))):
            return name
        finer = {each: self.of(each) for each in used}
        widest = max((self.values[each].type.dtype for each in finer.values()), key=DTYPE_BYTES.__getitem__)
        own = self.values[name].type
        if node.target == CAST and DTYPE_BYTES[own.dtype] <= DTYPE_BYTES[widest]:
            return finer[used[0]]
        if all(each == same for each, same in finer.items()):
            return name
        dtype = own.dtype if node.target == CAST else widest
        made = Value(f"{name}_unrounded", replace(own, dtype=dtype))
        self.values[made.name] = made
        self.made[name] = replace(renamed(node, finer), results=(made,))
        return made.name

    def _is_number(self, name: str) -> bool:
        found = self.values[name].type
        return found.is_float and not found.shape
