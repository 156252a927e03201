"""Repeated modules that torch.export is not shown.

It makes a placeholder for every parameter that it sees, and walks over all modules several times. A module that is
only going to repeat another one needs none of that: it is taken out of the tree, and put back while forward runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from autopar.passes.trace.instances import Instance
from autopar.passes.trace.tokens import state_of

FEWEST = 4
"""Of fewer modules that look alike all are shown."""


class Hidden:
    """Of many modules that look alike all but the first, unless they share tensors with others.

    ``inside``: identities of the states of all modules in them. None of them may run: their parameters are not part
    of the trace.
    """

    def __init__(self, model: nn.Module, instances: Mapping[int, Instance]) -> None:
        found: dict[Any, list[tuple[dict[str, Any], str, Instance]]] = {}
        for table, name, instance in _outermost(model, instances, set()):
            found.setdefault((instance.kind, _says(instance)), []).append((table, name, instance))
        self.inside: set[int] = set()
        self._tables: dict[int, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {}  # table, shown, all
        for places in found.values():
            first = places[0][2]
            for table, name, instance in places if len(places) >= FEWEST else ():
                if instance is not first and not instance.tied:
                    _, shown, _ = self._tables.setdefault(id(table), (table, dict(table), dict(table)))
                    del shown[name]
                    self.inside.update(id(state_of(module)) for module in instance.modules.values())

    @contextmanager
    def away(self) -> Iterator[None]:
        """Inside, they are not part of the model."""
        self._put(1)
        try:
            yield
        finally:
            self._put(2)

    @contextmanager
    def back(self) -> Iterator[None]:
        """Inside, which is inside ``away``, they are."""
        self._put(2)
        try:
            yield
        finally:
            self._put(1)

    def _put(self, which: int) -> None:
        for entry in self._tables.values():
            entry[0].clear()
            entry[0].update(entry[which])


def _says(instance: Instance) -> tuple[Any, ...]:
    """What layers of one kind often differ in: whether they do this, or of which sort they are. A guess, no proof."""
    return tuple(
        (path, name, value)
        for path, module in instance.modules.items()
        for name, value in state_of(module).items()
        if type(value) in (bool, str, float, type(None))
    )


def _outermost(
    module: nn.Module, instances: Mapping[int, Instance], seen: set[int]
) -> Iterator[tuple[dict[str, Any], str, Instance]]:
    """Table and name of each instance that is in no other one."""
    for name, child in module._modules.items():
        if child is None:
            continue
        instance = instances.get(id(state_of(child)))
        if instance is not None:
            yield module._modules, name, instance
        elif id(child) not in seen:
            seen.add(id(child))
            yield from _outermost(child, instances, seen)
