"""Every legal way to place one node on the mesh, from its rule.

On each axis a node takes one factor (at a stride position inside it), or ``partial`` operands, or nothing.
Where the factor stands decides the placements of operands and results (``ir/rules.py``).
Text: ``n``, ``n/3`` (at stride 3), ``t>e`` (an exchange: tokens t enter, experts e are there), ``P0`` (the first
partial set), ``-``.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from autopar.ir.biases import products_with_bias
from autopar.ir.errors import IRError
from autopar.ir.graph import SOURCES, Graph
from autopar.ir.layout import RSTAR, Layout, Partial, Placement, R, Shard, stacked
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS
from autopar.ir.rules import NodeRule
from autopar.passes.facts import Fact
from autopar.passes.positions import BATCH_AXES, EXPERT_AXIS, ROLES, Positions, flat_operands, node_key

Shape: TypeAlias = tuple[int, ...]
# By the axis, its size, the operands that may be P on it, whether its name binds, and ``Positions.inner``.
OnAxis: TypeAlias = "dict[tuple[str, int, tuple[bool, ...], bool, bool], list[Alone]]"

# With more axes cp binds too. With these it may do nothing at all: over a network that is far too slow all nodes may
# do the same work.
FEW_AXES = 2


@dataclass(frozen=True, slots=True)
class Choice:
    """What one axis does at a node: ``factor`` at ``outer`` (``into``: of an exchange), a partial set, or nothing."""

    factor: str | None = None
    outer: int = 1
    partial: int | None = None
    into: str | None = None

    def __str__(self) -> str:
        if self.partial is not None:
            return f"P{self.partial}"
        if self.factor is None:
            return "-"
        into = "" if self.into is None else f">{self.into}"
        return f"{self.factor}{into}" if self.outer == 1 else f"{self.factor}/{self.outer}{into}"

    @classmethod
    def parse(cls, text: str) -> Choice:
        if text == "-":
            return cls()
        if match := re.fullmatch(r"P(\d+)", text):
            return cls(partial=int(match[1]))
        text, _, into = text.partition(">")
        factor, _, outer = text.partition("/")
        return cls(factor=factor, outer=int(outer or 1), into=into or None)

    def owned(self) -> tuple[tuple[str, int], ...]:
        """The factors that the axis owns, and where in them: of one tensor at most one."""
        first = () if self.factor is None else ((self.factor, self.outer),)
        return first if self.into is None else (*first, (self.into, 1))


NOTHING = Choice()


class Alone(NamedTuple):
    """What one axis does at a node, and where that places operands and results if it stacks inside no other axis."""

    choice: Choice
    factors: tuple[str, ...]
    operands: tuple[Placement | None, ...]
    results: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One choice an axis and what follows: layouts needed of the operands (flattened; None: absent) and
    layouts of the results, whose R* and P have been settled."""

    choices: tuple[Choice, ...]
    operands: tuple[Layout | None, ...]
    results: tuple[Layout, ...]

    def text(self, mesh: Mesh) -> dict[str, str]:
        return {axis: str(choice) for axis, choice in zip(mesh.names, self.choices, strict=True)}


@dataclass(frozen=True, slots=True)
class Joint:
    """Strategies of several nodes, by their first results, that are chosen together."""

    nodes: tuple[str, ...]
    strategies: tuple[Strategy, ...]


@dataclass(frozen=True, kw_only=True)
class NodeShapes:
    """What a strategy needs to know of a node besides its rule."""

    operands: tuple[Shape | None, ...]
    results: tuple[Shape, ...]
    grads: tuple[bool, ...]  # which operands have a gradient
    joined: bool = False  # a bias, added by the product before it


def node_shapes(graph: Graph, facts: Mapping[tuple[str, str], Fact]) -> dict[tuple[str, str], NodeShapes]:
    """By ``node_key``."""
    found = {}
    for part in (*graph.blocks, graph):
        biases = products_with_bias(part)
        for node in part.nodes:
            if node.target not in (*SOURCES, "call"):
                uses = [None if name is None else facts[part.name, name] for name in flat_operands(node)]
                found[node_key(part, node)] = NodeShapes(
                    operands=tuple(None if fact is None else fact.type.shape for fact in uses),
                    results=tuple(value.type.shape for value in node.results),
                    grads=tuple(fact is not None and fact.grad for fact in uses),
                    joined=node.results[0].name in biases,
                )
    return found


def choices_of(
    rule: NodeRule,
    found: Positions,
    key: tuple[str, str],
    shapes: NodeShapes,
    mesh: Mesh,
    can_be_partial: Sequence[frozenset[str]],
    known: OnAxis,
) -> Iterator[tuple[Alone, ...]]:
    """Combinations to try: one entry an axis. ``can_be_partial[i]``: axes on which operand i may be P."""
    binding = ROLES if sum(axis != MICROBATCH_AXIS for axis in mesh.names) > FEW_AXES else BATCH_AXES
    options = []
    for axis, size in mesh.axes:
        partial, binds = tuple([axis in axes for axes in can_be_partial]), axis in binding
        asked = axis, size, partial, binds, found.inner
        if asked not in known:
            choices = _axis_choices(rule, found, key, shapes, axis, size, partial, binds=binds)
            known[asked] = [_alone(rule, choice, shapes, axis) for choice in choices]
        options.append(known[asked])
    return itertools.product(*options)


def _alone(rule: NodeRule, choice: Choice, shapes: NodeShapes, axis: str) -> Alone:
    operands = tuple(
        None if shape is None else _placement(rule, choice, axis, rule.places[index], index, grad=shapes.grads[index])
        for index, shape in enumerate(shapes.operands)
    )
    results = tuple(_placement(rule, choice, axis, places) for places in rule.places[len(rule.operands) :])
    return Alone(choice, tuple(factor for factor, _ in choice.owned()), operands, results)


def _placement(
    rule: NodeRule, choice: Choice, axis: str, places: Mapping[str, tuple[int, int]], operand: int | None = None, *,
    grad: bool = False,
) -> Placement:  # fmt: skip
    """Of one operand, or of a result, on an axis that stacks inside no other."""
    if choice == NOTHING:
        return R
    for factor, outer in reversed(choice.owned()):
        if factor in places:
            dim, start = places[factor]
            return Shard(dim, start * outer)
    if operand is None:
        return Partial() if choice.partial is not None else Partial(rule.reduce)
    if choice.partial is not None and operand in rule.partial[choice.partial]:
        return Partial()
    return RSTAR if grad and axis != MICROBATCH_AXIS else R  # gradients add up over time by themselves


def _axis_choices(
    rule: NodeRule,
    found: Positions,
    key: tuple[str, str],
    shapes: NodeShapes,
    axis: str,
    size: int,
    can_be_partial: Sequence[bool],
    *,
    binds: bool,
) -> list[Choice]:
    offered = {f: found.offered(key, f, rule.sizes[f], axis, size) for f in rule.choosable}
    hidden = set() if found.inner else _behind_others(rule, {f for f, at in offered.items() if 1 in at})
    chosen = [
        Choice(f, at)
        for f, ats in offered.items() if f not in hidden
        for at in ats if at == 1 or f not in rule.contiguous
    ]  # fmt: skip
    sums = [
        Choice(partial=index)
        for index, members in enumerate(rule.partial)
        if all(m < len(shapes.operands) and shapes.operands[m] is not None for m in members)
        and any(can_be_partial[m] for m in members)
    ]
    if rule.exchange is not None and 1 in offered.get(rule.exchange[1], ()):
        tokens, experts = rule.exchange
        chosen += [Choice(tokens, choice.outer, into=experts) for choice in chosen if choice.factor == tokens]
        if axis == EXPERT_AXIS:  # its name binds it: no device has all experts
            return [choice for choice in chosen if experts in dict(choice.owned())]
    if axis == MICROBATCH_AXIS:  # time is not a choice: what depends on the batch runs once a microbatch
        batch = [c for c in chosen if "batch" in _labels(found, key, c)]
        return batch[:1] or sums or [NOTHING]
    bound = _bound(rule, found, key, axis, chosen) if binds else []
    return bound or [*chosen, *sums, NOTHING]


def _bound(
    rule: NodeRule, found: Positions, key: tuple[str, str], axis: str, chosen: Sequence[Choice]
) -> list[Choice]:
    """What a name leaves no choice but: dp and ep split all that keeps the batch, cp what keeps the sequence.

    Nothing where some of it is only read or summed up: adding up the parts of a loss may take longer than doing it all
    everywhere, and so may attention's. Nor need views follow cp: what is read whole is gathered where it is smallest.
    """
    if key in found.unbound or (rule.view and axis not in BATCH_AXES):
        return []
    kept = {factor for dims in rule.results for dim in dims for factor in dim}
    role, marks = ROLES[axis][0], found.factors[key]
    if any(factor not in kept and any(mark[0] == role for mark in at) for factor, at in marks.items()):
        return []
    return [choice for choice in chosen if role in _labels(found, key, choice)]


def _labels(found: Positions, key: tuple[str, str], choice: Choice) -> set[str]:
    """Of what a choice stands at in its factor."""
    return {label for label, start, _ in found.factors[key].get(choice.factor or "", ()) if start == choice.outer}


def hides(rule: NodeRule, found: Positions, key: tuple[str, str], axis: str, few: int, many: int) -> bool:
    """Whether so few devices are not offered what so many may have, since they may have the major factor before it."""

    def shown(size: int) -> set[str]:
        offered = {f: at for f in rule.choosable if (at := found.offered(key, f, rule.sizes[f], axis, size))}
        return offered.keys() - _behind_others(rule, {f for f, at in offered.items() if 1 in at})

    return not found.inner and not shown(many) <= shown(few)


def _behind_others(rule: NodeRule, offered: set[str]) -> set[str]:
    """Minor factors of compound dims whose major factor the axis may have instead."""
    hidden = set()
    for dims in (*rule.operands, *rule.results):
        for dim in dims:
            for index, factor in enumerate(dim):
                if any(major in offered for major in dim[:index]):
                    hidden.add(factor)
    return hidden


def strategy(rule: NodeRule, choices: tuple[Choice, ...], shapes: NodeShapes, mesh: Mesh) -> Strategy | None:
    """The layouts that follow from ``choices``; None if the axes get in each other's way."""
    options = [_alone(rule, choice, shapes, axis) for axis, choice in zip(mesh.names, choices, strict=True)]
    return _together(rule, options, shapes, mesh)


def _together(rule: NodeRule, options: Sequence[Alone], shapes: NodeShapes, mesh: Mesh) -> Strategy | None:
    """The strategy of these choices, one an axis."""
    owned = [factor for one in options for factor in one.factors]
    if len(set(owned)) < len(owned) and _overfull(rule, options, mesh):
        return None
    operands: list[Layout | None] = []
    for index, shape in enumerate(shapes.operands):
        fits = None if shape is None else _fitting(mesh, tuple([one.operands[index] or R for one in options]), shape)
        if shape is not None and fits is None:
            return None
        operands.append(fits)
    results: list[Layout] = []
    for index, shape in enumerate(shapes.results):
        fits = _fitting(mesh, tuple([one.results[index] for one in options]), shape)
        if fits is None:
            return None
        results.append(fits)
    return Strategy(tuple([one.choice for one in options]), tuple(operands), tuple(results))


# Nodes ask for few layouts, each of them often.
@functools.lru_cache(maxsize=1 << 14)
def _fitting(mesh: Mesh, placements: tuple[Placement, ...], shape: Shape) -> Layout | None:
    """Axes that own the same place of a tensor stack. None where that does not fit the shape."""
    owned = [(axis, *at) for axis, at in zip(mesh.names, placements, strict=True) if isinstance(at, Shard)]
    if len(owned) > 1:
        places = stacked(mesh, owned)
        placements = tuple([places.get(axis, at) for axis, at in zip(mesh.names, placements, strict=True)])
    layout = Layout.placed(mesh, placements)
    return None if layout.problem(shape) else layout


def _overfull(rule: NodeRule, options: Sequence[Alone], mesh: Mesh) -> bool:
    """Whether axes that share a factor want more of it than there is, and would reach into the one behind it.

    Or exchange both: only one axis may.
    """
    taken: dict[str, list[tuple[str, int, int]]] = {}
    for axis, one in zip(mesh.names, options, strict=True):
        for factor, outer in one.choice.owned():
            taken.setdefault(factor, []).append((axis, 0, outer))
    return sum(one.choice.into is not None for one in options) > 1 or any(
        len(together) > 1 and _reach_out(mesh, tuple(together), rule.sizes[factor])
        for factor, together in taken.items()
    )


@functools.lru_cache(maxsize=1 << 14)
def _reach_out(mesh: Mesh, together: tuple[tuple[str, int, int], ...], size: int) -> bool:
    """Whether axes want more of one factor than there is."""
    return Layout.of(mesh, stacked(mesh, together)).problem((size,)) is not None


def strategies(
    rule: NodeRule,
    found: Positions,
    key: tuple[str, str],
    shapes: NodeShapes,
    mesh: Mesh,
    can_be_partial: Sequence[frozenset[str]],
    known: OnAxis | None = None,
) -> tuple[Strategy, ...]:
    """Legal strategies of a node, in a fixed order; never empty unless microbatches forbid it.

    ``known``: what single axes may do at nodes like this one, on any mesh.
    """
    legal = []
    for options in choices_of(rule, found, key, shapes, mesh, can_be_partial, {} if known is None else known):
        made = _together(rule, options, shapes, mesh)
        if made is not None:
            legal.append(made)
    return tuple(legal)


def parse_choices(text: Mapping[str, str], mesh: Mesh) -> tuple[Choice, ...]:
    """Inverse of ``Strategy.text``; raises IRError for an axis that the mesh does not have."""
    unknown = [axis for axis in text if axis not in mesh.names]
    if unknown:
        raise IRError(f"strategy names axis {unknown[0]!r}, the mesh has {mesh}")
    return tuple(Choice.parse(text.get(axis, "-")) for axis in mesh.names)
