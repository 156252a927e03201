"""What is known of the values of a graph that depend on nothing but indices: masks, positions, constants.

Exported models build their attention masks from ``arange``, comparisons and gathers. Following these
operations on ``Fact``s instead of tensors proves a mask causal, windowed or all-true at any size without
making it.
"""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.graph import Node
from autopar.passes import canonical_facts_index, canonical_facts_math
from autopar.passes.canonical_affine import TRUE, Affine, Atom, Fact, Pred, Shape, exact, mapped

_RULES = {**canonical_facts_index.RULES, **canonical_facts_math.RULES}


def follow(node: Node, facts: Mapping[str, Fact], shapes: Mapping[str, Shape]) -> Fact | None:
    """What is known of the only result of ``node``; None if nothing.

    Requires: a canonical node. Ensures: every element of the result is exactly what the fact says.
    """
    rule = _RULES.get(node.target)
    if rule is None or len(node.results) != 1:
        return None
    names = list(node.uses())
    given = [facts.get(name) for name in names]
    type_ = node.result.type
    if 0 in type_.shape or (names and all(fact is None for fact in given)):
        return None
    fact = rule(node, given, [shapes[name] for name in names])
    if isinstance(fact, Pred):
        return fact if type_.dtype == "bool" else None
    return fact if fact is not None and exact(fact, type_.dtype, type_.shape) else None


def is_causal(p: Pred, shape: Shape) -> bool:
    """Whether ``p`` is true just where the last index is at most the one before, in a square."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return False
    return p == Pred(frozenset({Atom(Affine(0, (0,) * (len(shape) - 2) + (1, -1)))}))


def sees_itself(p: Pred, shape: Shape) -> bool:
    """Whether ``p`` is true wherever the last two indices are equal, in a square."""
    if len(shape) < 2 or shape[-1] != shape[-2] or p.negated:
        return False

    def diagonal(value: Affine) -> Affine:
        return Affine(value.const, (*value.coefs[:-2], value.coefs[-2] + value.coefs[-1]))

    return mapped(p, diagonal, shape[:-1]) == TRUE
