"""Facts through constants, views and gathers: what moves indices about. One function an operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autopar.ir.graph import Node
from autopar.passes.canonical_affine import (
    FALSE,
    TRUE,
    Affine,
    Atom,
    Choice,
    Fact,
    Number,
    Pred,
    Shape,
    both,
    choice,
    mapped,
    pred,
)
from autopar.passes.canonical_views import integer, ints

Given = Sequence["Fact | None"]
Follow = Callable[[Node, Given, Sequence[Shape]], "Fact | None"]
"""The fact of a node's result from those of its operands and their shapes."""


def number(value: object) -> Number:
    assert isinstance(value, (int, float))
    return int(value) if isinstance(value, float) and math.isfinite(value) and value == int(value) else value


def constant(value: Number, rank: int) -> Affine:
    return Affine(value, (0,) * rank)


def _arange(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    start, step = number(node.attr("start", 0)), number(node.attr("step", 1))
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    return Affine(start, (step if node.result.type.shape[0] > 1 else 0,))


def _full(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    value = node.attr("fill_value")
    if node.result.type.dtype == "bool":
        return TRUE if value else FALSE
    return constant(number(value), len(node.result.type.shape))


def _reshape(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    """Dims of size 1 come and go; anything else only of a constant."""
    (fact,), (have,), shape = given, shapes, node.result.type.shape
    assert fact is not None
    long = [at for at, size in enumerate(shape) if size != 1]
    old = [at for at, size in enumerate(have) if size != 1]
    if [shape[at] for at in long] == [have[at] for at in old]:
        place = dict(zip(long, old, strict=True))

        def moved(value: Affine) -> Affine:
            return Affine(
                value.const, tuple(value.coefs[place[at]] if at in place else 0 for at in range(len(shape)))
            )

        return mapped(fact, moved, shape)
    if isinstance(fact, Choice) or not fact.constant:
        return None
    return constant(fact.const, len(shape)) if isinstance(fact, Affine) else fact


def _same(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    return given[0]


def _permute(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    assert given[0] is not None
    dims = ints(node.attr("dims"))
    return mapped(
        given[0],
        lambda value: Affine(value.const, tuple(value.coefs[dim] for dim in dims)),
        node.result.type.shape,
    )


def _slice(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    assert given[0] is not None
    dim, start, step = integer(node.attr("dim")), integer(node.attr("start")), integer(node.attr("step", 1))
    shape = node.result.type.shape
    if 0 in shape:
        return None

    def moved(value: Affine) -> Affine:
        coef = value.coefs[dim]
        left = coef * step if shape[dim] > 1 else 0
        return Affine(value.const + coef * start, (*value.coefs[:dim], left, *value.coefs[dim + 1 :]))

    return mapped(given[0], moved, shape)


def _diff(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    """Differences along a dim, all the same one: that from the element put before included."""
    if len(given) != 2 or node.attr("n", 1) != 1:
        return None
    x, before = given
    if not isinstance(x, Affine) or not isinstance(before, Affine):
        return None
    rank = len(shapes[0])
    dim = integer(node.attr("dim", -1)) % rank
    step = x.coefs[dim] if shapes[0][dim] > 1 else x.const - before.const
    rest = (*x.coefs[:dim], 0, *x.coefs[dim + 1 :])
    if shapes[1][dim] != 1 or rest != before.coefs or x.const - before.const != step:
        return None
    return constant(step, rank)


def _cumsum(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    """The running sum of one number is affine."""
    fact, rank = given[0], len(shapes[0])
    value = int(fact == TRUE) if isinstance(fact, Pred) and fact.constant else None
    if isinstance(fact, Affine) and fact.constant and isinstance(fact.const, int):
        value = fact.const
    if value is None:
        return None
    dim = integer(node.attr("dim")) % rank
    coefs = tuple(value if at == dim and size > 1 else 0 for at, size in enumerate(shapes[0]))
    return Affine(value, coefs)


def _index(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    """A gather at affine indices, one for every dim: the indices put into the fact."""
    fact, indices = given[0], given[1:]
    have, shape = shapes[0], node.result.type.shape
    picked = node.operands[1]
    if fact is None or not isinstance(picked, tuple) or len(indices) != len(have) or None in picked:
        return None
    places: list[Affine] = []
    for index, index_shape, size in zip(indices, shapes[1:], have, strict=True):
        if not isinstance(index, Affine):
            return None
        low, high = index.range(index_shape)
        if not isinstance(index.const, int) or low < 0 or high >= size:
            return None
        places.append(Affine(index.const, (0,) * (len(shape) - len(index_shape)) + index.coefs))

    def moved(value: Affine) -> Affine:
        made = constant(value.const, len(shape))
        for coef, place in zip(value.coefs, places, strict=True):
            made = made.plus(place, coef)
        return made

    return mapped(fact, moved, shape)


def _triangle(upper: bool) -> Follow:
    def rule(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
        """Zero, or false, below (or above) a diagonal."""
        shape, fact = node.result.type.shape, given[0]
        rank, diagonal = len(shape), integer(node.attr("diagonal", 0))
        sign = 1 if upper else -1
        line = Affine(-sign * diagonal, (0,) * (rank - 2) + (-sign, sign))
        kept = pred(frozenset({Atom(line)}), shape)
        match fact:
            case Pred():
                return both(fact, kept, shape)
            case Affine() if fact.constant:
                return choice(kept, fact.const, 0, rank)
            case Choice(p, yes, no) if no == 0:
                joined = both(p, kept, shape)
                return None if joined is None else choice(joined, yes, 0, rank)
        return None

    return rule


RULES: dict[str, Follow] = {
    "aten.arange.start_step": _arange,
    "aten.full.default": _full,
    "aten.reshape.default": _reshape,
    "aten.expand.default": _same,
    "autopar.detach": _same,
    "aten.permute.default": _permute,
    "aten.slice.Tensor": _slice,
    "aten.diff.default": _diff,
    "aten.cumsum.default": _cumsum,
    "aten.index.Tensor": _index,
    "aten.triu.default": _triangle(True),
    "aten.tril.default": _triangle(False),
}
