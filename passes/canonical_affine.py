"""What can be known of every element of a tensor from its index alone.

    Affine   element [i0, i1, …] is const + sum of coefs[d] · i_d
    Pred     it is true where all atoms hold (``negated``: where not all do); an atom: Affine >= 0 or == 0
    Choice   it is ``yes`` where a Pred is true, else ``no``

All arithmetic is exact: where torch would round, nothing is known (None). Facts have one coefficient for
each dim of the tensor, 0 for dims of size 1, so that equal facts are equal objects.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from autopar.ir.types import COMPLEX_DTYPES

Number: TypeAlias = "int | float"
Shape: TypeAlias = "tuple[int, ...]"

# Integers up to here are exact in a type.
EXACT = {"f64": 1 << 53, "f32": 1 << 24, "f16": 1 << 11, "bf16": 1 << 8}


@dataclass(frozen=True, slots=True)
class Affine:
    """``const + sum coefs[d] * i_d``; the constant may be any number if all coefficients are 0."""

    const: Number
    coefs: tuple[int, ...]

    @property
    def constant(self) -> bool:
        return not any(self.coefs)

    def range(self, shape: Shape) -> tuple[Number, Number]:
        """The least and the largest element."""
        ends = [coef * (size - 1) for coef, size in zip(self.coefs, shape, strict=True)]
        return self.const + sum(end for end in ends if end < 0), self.const + sum(
            end for end in ends if end > 0
        )

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        coefs = tuple(a + factor * b for a, b in zip(self.coefs, other.coefs, strict=True))
        return Affine(self.const + factor * other.const, coefs)


@dataclass(frozen=True, slots=True)
class Atom:
    """``value == 0`` if ``equal``, else ``value >= 0``; ``value`` is of integers."""

    value: Affine
    equal: bool = False

    def decided(self, shape: Shape) -> bool | None:
        """True or False if it is so for every element."""
        low, high = self.value.range(shape)
        if self.equal:
            return True if low == high == 0 else False if low > 0 or high < 0 else None
        return True if low >= 0 else False if high < 0 else None


@dataclass(frozen=True, slots=True)
class Pred:
    """A conjunction of atoms, or its negation. No atoms: true."""

    atoms: frozenset[Atom] = frozenset()
    negated: bool = False

    @property
    def constant(self) -> bool:
        return not self.atoms


@dataclass(frozen=True, slots=True)
class Choice:
    """``yes`` where ``pred`` is true, else ``no``."""

    pred: Pred
    yes: Number
    no: Number


Fact: TypeAlias = "Affine | Pred | Choice"
TRUE, FALSE = Pred(), Pred(negated=True)


def pred(atoms: frozenset[Atom], shape: Shape, negated: bool = False) -> Pred:
    """The conjunction in normal form: no atom that always holds, and no negation of one inequality."""
    open_atoms = []
    for atom in atoms:
        decided = atom.decided(shape)
        if decided is False:
            return TRUE if negated else FALSE
        if decided is None:
            open_atoms.append(atom)
    if negated and len(open_atoms) == 1 and not open_atoms[0].equal:
        value = open_atoms[0].value
        return Pred(frozenset({Atom(Affine(-1, (0,) * len(shape)).plus(value, -1))}))
    return Pred(frozenset(open_atoms), negated)


def compared(a: Affine, b: Affine, relation: str, shape: Shape) -> Pred | None:
    """``a relation b`` for eq, ne, lt, le, gt, ge; both aligned to ``shape``."""
    if relation in ("gt", "le"):
        a, b, relation = b, a, {"gt": "lt", "le": "ge"}[relation]
    gap = a.plus(b, -1)
    if not all(isinstance(number, int) for number in (a.const, b.const)):
        infinite = [
            number for number in (a.const, b.const) if isinstance(number, float) and math.isinf(number)
        ]
        if len(infinite) != 1 or not gap.constant:
            return None
        holds = {"eq": False, "ne": True, "lt": gap.const < 0, "ge": gap.const > 0}
        return TRUE if holds[relation] else FALSE
    if relation in ("eq", "ne"):
        if next((coef for coef in gap.coefs if coef), 0) < 0:
            gap = b.plus(a, -1)
        return pred(frozenset({Atom(gap, True)}), shape, relation == "ne")
    return pred(frozenset({Atom(gap)}), shape, relation == "lt")


def negation(p: Pred, shape: Shape) -> Pred:
    return pred(p.atoms, shape, not p.negated)


def both(p: Pred, q: Pred, shape: Shape) -> Pred | None:
    """``p and q``."""
    if FALSE in (p, q):
        return FALSE
    if p in (TRUE, q) or q == TRUE:
        return q if p == TRUE else p
    return None if p.negated or q.negated else pred(p.atoms | q.atoms, shape)


def either(p: Pred, q: Pred, shape: Shape) -> Pred | None:
    """``p or q``."""
    neither = both(negation(p, shape), negation(q, shape), shape)
    return None if neither is None else negation(neither, shape)


def choice(p: Pred, yes: Number, no: Number, rank: int) -> Affine | Choice:
    """One number if the predicate is constant or both are the same."""
    if p.constant or yes == no:
        return Affine(no if p == FALSE else yes, (0,) * rank)
    if p.negated:
        return Choice(Pred(p.atoms), no, yes)
    return Choice(p, yes, no)


def mapped(fact: Fact, change: Callable[[Affine], Affine], shape: Shape) -> Fact:
    """The fact with every affine expression in it changed; ``shape`` is that of the new value."""
    match fact:
        case Affine():
            return change(fact)
        case Pred(atoms, negated):
            return pred(frozenset(Atom(change(atom.value), atom.equal) for atom in atoms), shape, negated)
        case Choice(p, yes, no):
            changed = mapped(p, change, shape)
            assert isinstance(changed, Pred)
            return choice(changed, yes, no, len(shape))


def exact(fact: Fact, dtype: str, shape: Shape) -> bool:
    """Whether every element is represented exactly in ``dtype``; nothing is known of complex ones."""
    if dtype in COMPLEX_DTYPES:
        return False
    match fact:
        case Pred():
            return True
        case Affine() if fact.constant:
            return _represented(fact.const, dtype)
        case Affine():
            ends = (fact.const, *fact.range(shape))
            return all(isinstance(end, int) and abs(end) <= EXACT.get(dtype, 1 << 62) for end in ends)
        case Choice(_, yes, no):
            return _represented(yes, dtype) and _represented(no, dtype)


def _represented(number: Number, dtype: str) -> bool:
    """Whether ``dtype`` has this very number."""
    if dtype not in EXACT:
        return not isinstance(number, float) and abs(number) <= 1 << 62
    if isinstance(number, float) and math.isinf(number):
        return True
    try:
        if dtype == "bf16":
            (bits,) = struct.unpack("<I", struct.pack("<f", number))
            return not bits & 0xFFFF and _represented(number, "f32")
        code = {"f64": "<d", "f32": "<f", "f16": "<e"}[dtype]
        return bool(struct.unpack(code, struct.pack(code, number))[0] == number)
    except OverflowError:
        return False
