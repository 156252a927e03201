"""Write a fact as the shortest graph that makes it: dims it does not depend on have size 1."""

from __future__ import annotations

from autopar.ir.types import Attr, TensorType
from autopar.passes.canonical_affine import FALSE, Affine, Atom, Choice, Fact, Number, Pred, Shape
from autopar.passes.canonical_arith import full
from autopar.passes.canonical_emit import Emitter
from autopar.passes.canonical_views import broadcast, cast, reshape


def closed_form(em: Emitter, fact: Fact, type_: TensorType) -> str:
    """A value that broadcasts to one of ``type_`` for which ``fact`` is true, of the same rank."""
    rank = len(type_.shape)
    match fact:
        case Affine() if fact.constant:
            number: Attr = float(fact.const) if type_.is_float else fact.const
            return full(em, TensorType(type_.dtype, (1,) * rank), number)
        case Affine():
            return cast(
                em, _terms(em, fact, type_.shape, "i64" if type_.is_float else type_.dtype), type_.dtype
            )
        case Pred():
            return _pred(em, fact, type_.shape)
        case Choice(p, yes, no):
            mask = _pred(em, p, type_.shape)
            if (yes, no) == (1, 0):
                return cast(em, mask, type_.dtype)
            base = full(em, TensorType(type_.dtype, (1,) * rank), _as(type_, no))
            made = TensorType(type_.dtype, em.types[mask].shape)
            return em.op("aten.masked_fill.Scalar", base, mask, type=made, value=_as(type_, yes))


def _as(type_: TensorType, number: Number) -> Attr:
    return float(number) if type_.is_float else number


def _terms(em: Emitter, value: Affine, shape: Shape, dtype: str) -> str:
    """A sum of ranges, one for each dim; the constant is the start of the first."""
    rank, start, made = len(shape), value.const, ""
    for dim, coef in enumerate(value.coefs):
        if not coef:
            continue
        size = shape[dim]
        line = em.op(
            "aten.arange.start_step",
            type=TensorType(dtype, (size,)), start=start, end=start + coef * size, step=coef, dtype=dtype,
        )  # fmt: skip
        line = reshape(em, line, tuple(size if at == dim else 1 for at in range(rank)))
        made = _pointwise(em, "aten.add.Tensor", dtype, made, line) if made else line
        start = 0
    return made


def _pointwise(em: Emitter, target: str, dtype: str, x: str, y: str) -> str:
    return em.op(target, x, y, type=TensorType(dtype, broadcast(em.types[x].shape, em.types[y].shape)))


def _pred(em: Emitter, p: Pred, shape: Shape) -> str:
    if p.constant:
        return full(em, TensorType("bool", (1,) * len(shape)), p != FALSE)
    made = ""
    for atom in sorted(p.atoms, key=lambda atom: (atom.equal, atom.value.const, atom.value.coefs)):
        one = _atom(em, atom, shape)
        made = _pointwise(em, "aten.logical_and.default", "bool", made, one) if made else one
    if p.negated:
        made = em.op("aten.logical_not.default", made, type=em.types[made])
    return made


def _atom(em: Emitter, atom: Atom, shape: Shape) -> str:
    """``value >= 0`` with what is subtracted on the other side."""
    value = atom.value
    left = Affine(value.const, tuple(max(coef, 0) for coef in value.coefs))
    right = Affine(0, tuple(max(-coef, 0) for coef in value.coefs))
    relation = "eq" if atom.equal else "ge"
    if not left.constant and not right.constant:
        terms = (_terms(em, left, shape, "i64"), _terms(em, right, shape, "i64"))
        return _pointwise(em, f"aten.{relation}.Tensor", "bool", *terms)
    relation = relation if right.constant or atom.equal else "le"
    terms_of, bound = (right, left.const) if left.constant else (left, 0)
    line = _terms(em, terms_of, shape, "i64")
    return em.op(f"aten.{relation}.Tensor", line, type=TensorType("bool", em.types[line].shape), other=bound)
