"""Where each value of a graph comes from while its problem is built."""

from __future__ import annotations

import itertools
from collections import Counter

from autopar.ir.graph import Graph
from autopar.ir.layout import Layout
from autopar.passes.edges import Consumer
from autopar.passes.positions import flat_operands


class Values:
    """Variable and layouts of each value that has been met, and who needs it.

    ``saved``: values that are kept for backward anyway. ``used_once``: those that one node uses, once. ``passed``:
    those that enter or leave a block, which happens as they are.
    """

    def __init__(self, graph: Graph) -> None:
        self.variable: dict[str, int] = {}
        self.layouts: dict[str, tuple[Layout, ...]] = {}
        self.saved: set[str] = set()
        uses = Counter([*graph.outputs, *(name for node in graph.nodes for name in flat_operands(node) if name)])
        self.used_once = {name for name, count in uses.items() if count == 1}.difference(graph.outputs)
        calls = (flat_operands(node) for node in graph.nodes if node.target == "call")
        self.passed = {*graph.outputs, *itertools.chain.from_iterable(calls)}
        self.producers = graph.producers()
        self.consumers: dict[str, list[Consumer]] = {name: [] for name in graph.values()}

    def set(self, name: str, variable: int, layouts: tuple[Layout, ...], *, saved: bool = False) -> None:
        self.variable[name], self.layouts[name] = variable, layouts
        if saved:
            self.saved.add(name)
