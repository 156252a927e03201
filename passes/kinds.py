"""Which nodes of a model are alike: the same operation on the same types, with the same places for axes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from autopar.ir.graph import SOURCES
from autopar.ir.optable import row
from autopar.ir.recompute import is_expensive
from autopar.passes.partials import partial_values
from autopar.passes.positions import Positions, all_graphs, flat_operands, node_key
from autopar.passes.strategies import OnAxis, hides

if TYPE_CHECKING:
    from autopar.passes.build import Model

Key: TypeAlias = tuple[str, str]


class Keeps(NamedTuple):
    """Whether autograd keeps a node's first result, and which operands; whether it is dear to run again."""

    result: bool
    operands: tuple[bool, ...]
    expensive: bool


class Kinds:
    """A number for each node, equal for nodes whose strategies and prices are equal on every mesh, where equal axes may
    be partial; and what of that follows from one axis, which many meshes have."""

    def __init__(self, model: Model, found: Positions) -> None:
        self._found, self._model = found, model
        self._numbers: dict[Key, int] = {}
        self.choices: defaultdict[int, OnAxis] = defaultdict(dict)
        self.keeps: dict[Key, Keeps] = {}
        self._partial: dict[tuple[str, int], AbstractSet[Key]] = {}
        self._stand_for: dict[tuple[str, int, int], bool] = {}
        numbers: dict[object, int] = {}
        for part in all_graphs(model.graph):
            for node in part.nodes:
                if node.target in (*SOURCES, "call"):
                    continue
                key = node_key(part, node)
                rule = model.rules[key]
                operands = (None if name is None else model.facts[part.name, name].type for name in flat_operands(node))
                kind = (
                    node.target, row(node), tuple(operands), tuple(value.type for value in node.results),
                    tuple(rule.sizes.items()), rule.operands, rule.results, rule.whole, rule.partial, rule.reduce,
                    rule.contiguous, rule.uneven, rule.classes, model.shapes[key],
                    tuple(sorted(found.factors[key].items())), found.uneven.get(key, frozenset()),
                    key in found.unbound,
                )  # fmt: skip
                self._numbers[key] = numbers.setdefault(kind, len(numbers))
                entry, grads = row(node), model.shapes[key].grads
                kept = tuple(entry.keeps_operand(index, grads) for index in range(len(grads)))
                self.keeps[key] = Keeps(entry.keeps("r"), kept, is_expensive(node))

    def __getitem__(self, key: Key) -> int:
        return self._numbers[key]

    def partial_values(self, axis: str, size: int) -> AbstractSet[Key]:
        """Values of the model that may be Partial on an axis."""
        if (axis, size) not in self._partial:
            model = self._model
            self._partial[axis, size] = partial_values(model.graph, model.rules, self._found, axis, size)
        return self._partial[axis, size]

    def stand_for(self, axis: str, few: int, many: int) -> bool:
        """Whether so few devices along an axis may have, of each node, whatever so many may have."""
        asked = axis, few, many
        if asked not in self._stand_for:
            nodes = {number: key for key, number in self._numbers.items()}
            self._stand_for[asked] = not any(
                hides(self._model.rules[key], self._found, key, axis, few, many) for key in nodes.values()
            )
        return self._stand_for[asked]

    @cached_property
    def vectors(self) -> int:
        """How many trained parameters of less than two dimensions the model has, 1 at least."""
        graph = self._model.graph
        names = {str(node.attr("fqn")) for node in graph.sources("param")}
        for node in graph.nodes:
            params = node.attr("params") if node.target == "call" else ()
            assert isinstance(params, tuple)
            names.update(str(name) for call in params if isinstance(call, tuple) for name in call)
        known = (self._model.parameters[name] for name in sorted(names))
        return max(1, sum(one.trainable and not one.buffer and len(one.shape) < 2 for one in known))
