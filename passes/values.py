"""Values of a graph whose problem is being built."""

from __future__ import annotations

from autopar.ir.graph import Graph
from autopar.ir.layout import Layout
from autopar.passes.edges import Consumer


class Values:
    """Where each value of a graph comes from, in which layouts, and who needs it."""

    def __init__(self, graph: Graph) -> None:
        self.variable: dict[str, int] = {}
        self.layouts: dict[str, tuple[Layout, ...]] = {}
        self.saved: set[str] = set()
        self.consumers: dict[str, list[Consumer]] = {name: [] for name in graph.values()}

    def set(self, name: str, variable: int, layouts: tuple[Layout, ...], *, saved: bool = False) -> None:
        self.variable[name], self.layouts[name] = variable, layouts
        if saved:
            self.saved.add(name)
