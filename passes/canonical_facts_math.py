"""Facts through casts, arithmetic, comparisons, logic and fills. One function an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autopar.ir.graph import Node
from autopar.passes.canonical_affine import (
    FALSE,
    TRUE,
    Affine,
    Choice,
    Fact,
    Number,
    Pred,
    Shape,
    both,
    choice,
    compared,
    either,
    mapped,
    negation,
)
from autopar.passes.canonical_facts_index import Follow, Given, constant, number


def _aligned(fact: Fact, have: Shape, shape: Shape) -> Fact:
    """Broadcast: new leading dims."""
    extra = (0,) * (len(shape) - len(have))
    return mapped(fact, lambda value: Affine(value.const, extra + value.coefs), shape) if extra else fact


def _cast(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    type_, fact = node.result.type, given[0]
    assert fact is not None
    rank = len(type_.shape)
    if type_.dtype == "bool":
        return (
            fact
            if isinstance(fact, Pred)
            else _compare("ne")(node, [fact, constant(0, rank)], [type_.shape] * 2)
        )
    if isinstance(fact, Pred):
        return choice(fact, 1, 0, rank)
    return fact


def _operands(node: Node, given: Given, shapes: Sequence[Shape]) -> tuple[Fact, Fact] | None:
    """Both sides of a binary operation, aligned; a number is a constant."""
    shape = node.result.type.shape
    facts = [
        None if fact is None else _aligned(fact, have, shape)
        for fact, have in zip(given, shapes, strict=True)
    ]
    if len(facts) == 1:
        given_number = node.attr("other")
        if isinstance(given_number, bool) or given_number is None:
            return None
        facts.append(constant(number(given_number), len(shape)))
    a, b = facts
    return None if a is None or b is None else (a, b)


def _arithmetic(combine: Callable[[Affine, Affine], Affine | None]) -> Follow:
    def rule(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
        sides = _operands(node, given, shapes)
        if sides is None or Pred in map(type, sides) or node.attr("alpha", 1) != 1:
            return None
        return _each(sides[0], sides[1], combine, len(node.result.type.shape))

    return rule


def _each(a: Fact, b: Fact, combine: Callable[[Affine, Affine], Affine | None], rank: int) -> Fact | None:
    """``combine`` of two numbers, each of which may be a choice of two."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        return combine(a, b)
    preds = {side.pred for side in (a, b) if isinstance(side, Choice)}
    if len(preds) != 1:
        return None
    sides = []
    for pick in ("yes", "no"):
        x, y = (constant(getattr(side, pick), rank) if isinstance(side, Choice) else side for side in (a, b))
        made = combine(x, y) if isinstance(x, Affine) and isinstance(y, Affine) else None
        if made is None or not made.constant:
            return None
        sides.append(made.const)
    return choice(preds.pop(), sides[0], sides[1], rank)


def _product(a: Affine, b: Affine) -> Affine | None:
    if not a.constant:
        a, b = b, a
    if not a.constant or (not b.constant and not isinstance(a.const, int)):
        return None
    if not b.constant:
        assert isinstance(a.const, int)
        return Affine(a.const * b.const, tuple(a.const * coef for coef in b.coefs))
    return Affine(a.const * b.const, b.coefs)


def _sum(a: Affine, b: Affine) -> Affine | None:
    return a.plus(b)


def _difference(a: Affine, b: Affine) -> Affine | None:
    return a.plus(b, -1)


def _negative(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    match given[0]:
        case Affine(const, coefs):
            return Affine(-const, tuple(-coef for coef in coefs))
        case Choice(p, yes, no):
            return Choice(p, -yes, -no)
    return None


def _compare(relation: str) -> Follow:
    def rule(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
        sides = _operands(node, given, shapes)
        if sides is None or Pred in map(type, sides):
            return None
        shape = node.result.type.shape

        def truth(a: Affine, b: Affine) -> Affine | None:
            known = compared(a, b, relation, shape)
            return None if known is None or not known.constant else constant(int(known == TRUE), len(shape))

        if isinstance(sides[0], Affine) and isinstance(sides[1], Affine):
            return compared(sides[0], sides[1], relation, shape)
        match _each(sides[0], sides[1], truth, len(shape)):
            case Affine(const):
                return TRUE if const else FALSE
            case Choice(p, yes):
                return p if yes else negation(p, shape)
        return None

    return rule


def _and(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    p, q = _preds(node, given, shapes)
    if FALSE in (p, q):
        return FALSE
    return None if p is None or q is None else both(p, q, node.result.type.shape)


def _or(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    p, q = _preds(node, given, shapes)
    if TRUE in (p, q):
        return TRUE
    return None if p is None or q is None else either(p, q, node.result.type.shape)


def _preds(node: Node, given: Given, shapes: Sequence[Shape]) -> tuple[Pred | None, Pred | None]:
    shape = node.result.type.shape
    made = [
        None if fact is None else _aligned(fact, have, shape)
        for fact, have in zip(given, shapes, strict=True)
    ]
    p, q = (fact if isinstance(fact, Pred) else None for fact in (*made, None)[:2])
    return p, q


def _not(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    return negation(given[0], node.result.type.shape) if isinstance(given[0], Pred) else None


def _masked_fill(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    """A number where a predicate is true, else what was there: a number or a choice with it."""
    shape = node.result.type.shape
    x, mask = (
        None if fact is None else _aligned(fact, have, shape)
        for fact, have in zip(given, shapes, strict=True)
    )
    value = node.attr("value")
    if not isinstance(mask, Pred) or not isinstance(value, (int, float)) or isinstance(x, Pred):
        return x if mask == FALSE else None
    return _filled(mask, number(value), x, shape)


def _filled(mask: Pred, value: Number, x: Affine | Choice | None, shape: Shape) -> Fact | None:
    if mask == TRUE:
        return constant(value, len(shape))
    if isinstance(x, Affine) and x.constant:
        return choice(mask, value, x.const, len(shape))
    if isinstance(x, Choice) and value == x.no:
        kept = both(x.pred, negation(mask, shape), shape)
        return None if kept is None else choice(kept, x.yes, x.no, len(shape))
    if isinstance(x, Choice) and value == x.yes:
        wider = either(x.pred, mask, shape)
        return None if wider is None else choice(wider, x.yes, x.no, len(shape))
    return x if mask == FALSE else None


def _where(node: Node, given: Given, shapes: Sequence[Shape]) -> Fact | None:
    shape = node.result.type.shape
    known = [
        None if fact is None else _aligned(fact, have, shape)
        for fact, have in zip(given, shapes, strict=True)
    ]
    rest = iter(known[1:])
    sides: list[Fact | None] = []
    for name in ("self", "other"):
        given_number = node.attr(name)
        plain = isinstance(given_number, (int, float)) and not isinstance(given_number, bool)
        sides.append(constant(number(given_number), len(shape)) if plain else next(rest, None))
    mask, (yes, no) = known[0], sides
    if not isinstance(mask, Pred):
        return None
    if mask.constant:
        return yes if mask == TRUE else no
    if isinstance(yes, Affine) and yes.constant and not isinstance(no, Pred):
        return _filled(mask, yes.const, no, shape)
    if isinstance(no, Affine) and no.constant and not isinstance(yes, Pred):
        return _filled(negation(mask, shape), no.const, yes, shape)
    return None


RULES: dict[str, Follow] = {
    "aten.to.dtype": _cast,
    "aten.add.Tensor": _arithmetic(_sum),
    "aten.sub.Tensor": _arithmetic(_difference),
    "aten.mul.Tensor": _arithmetic(_product),
    "aten.neg.default": _negative,
    **{f"aten.{relation}.Tensor": _compare(relation) for relation in ("eq", "ne", "lt", "le", "gt", "ge")},
    "aten.logical_and.default": _and,
    "aten.logical_or.default": _or,
    "aten.logical_not.default": _not,
    "aten.masked_fill.Scalar": _masked_fill,
    **{f"aten.where.{kind}": _where for kind in ("self", "Scalar", "ScalarSelf", "ScalarOther")},
}
