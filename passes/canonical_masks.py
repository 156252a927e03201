"""Put what is known of masks and positions in closed form, and hand attention the least mask it needs.

A value that is known (see ``masks``) is not emitted where it stands: only where something unknown needs
it, its closed form is. Attention under a causal mask gets ``is_causal``, under an all-true one nothing;
a gather by plain ranges is a view of what it gathers from.
"""

from __future__ import annotations

from autopar.ir.graph import Graph, Node, Operand, map_operand
from autopar.ir.types import TensorType
from autopar.passes.canonical_affine import FALSE, TRUE, Affine, Choice, Fact, Pred, Shape, negation
from autopar.passes.canonical_closed import closed_form
from autopar.passes.canonical_emit import Emitter, finished, trimmed
from autopar.passes.canonical_views import cut, expand, operand, permute, reshape
from autopar.passes.masks import follow, is_causal, sees_itself

ATTENTION = "aten.scaled_dot_product_attention.default"
# What is added to a score to take a key away: the least number of f16, and all below.
_AWAY = -65504.0
# Operands that are taken where the condition is true and where it is false; 0: a number.
_WHERE = {"aten.where.self": (1, 2), "aten.where.ScalarOther": (1, 0), "aten.where.ScalarSelf": (0, 1)}
_NEUTRAL: dict[str, object] = {
    "aten.logical_and.default": TRUE, "aten.logical_or.default": FALSE,
    "aten.add.Tensor": 0, "aten.mul.Tensor": 1,
}  # fmt: skip


def fold_masks(graph: Graph, em: Emitter) -> Graph:
    """The graph with known values in closed form, written by ``em``.

    Requires: canonical spelling. Ensures: the same outputs; nothing that was known is gathered, compared
    or expanded any more.
    """
    return _Folder(em).run(graph)


class _Folder:
    def __init__(self, em: Emitter) -> None:
        self._em = em
        self._facts: dict[str, Fact] = {}
        self._types: dict[str, TensorType] = {}
        self._shapes: dict[str, Shape] = {}
        self._names: dict[str, str] = {}  # values of the old graph that have been emitted

    def run(self, graph: Graph) -> Graph:
        em = self._em
        for node in graph.nodes:
            em.source = node.source
            fact = follow(node, self._facts, self._shapes)
            for value in node.results:
                self._types[value.name] = value.type
                self._shapes[value.name] = value.type.shape
            if fact is not None:
                self._facts[node.result.name] = fact
                continue
            results = self._attention(node) or self._gather(node) or self._neutral(node) or self._plain(node)
            self._names.update((old.name, new) for old, new in zip(node.results, results, strict=True))
        return finished(graph, em.nodes, tuple(self._value(name) for name in graph.outputs))

    def _value(self, name: str) -> str:
        """The value in the new graph; a known one is made where it is first needed."""
        if name not in self._names:
            made = closed_form(self._em, self._facts[name], self._types[name])
            self._names[name] = expand(self._em, made, self._shapes[name])
        return self._names[name]

    def _operands(self, node: Node) -> tuple[Operand, ...]:
        names = {name: self._value(name) for name in node.uses()}
        return tuple(map_operand(operand, names) for operand in node.operands)

    def _plain(self, node: Node) -> tuple[str, ...]:
        types = tuple(value.type for value in node.results)
        operands = self._operands(node)
        if node.target == "aten.reshape.default":
            return (reshape(self._em, str(operands[0]), types[0].shape),)
        if node.target == "aten.expand.default":
            return (expand(self._em, str(operands[0]), types[0].shape),)
        return self._em.emit(node.target, operands, dict(node.attrs), types)

    def _attention(self, node: Node) -> tuple[str, ...] | None:
        """No mask if it shows everything, ``is_causal`` if it is causal, else one without its expansion."""
        if node.target != ATTENTION or len(node.operands) < 4:
            return None
        em, name = self._em, operand(node, 3)
        q, k, v = (self._value(operand(node, at)) for at in range(3))
        mask: str | None
        attrs = dict(node.attrs)
        fact = self._facts.get(name)
        shown = _shown(fact, self._shapes[name])
        if fact is not None and shown is not None:
            if is_causal(shown, (*self._shapes[name][:-2], em.types[q].shape[-2], em.types[k].shape[-2])):
                mask, attrs["is_causal"] = None, True
            elif shown == TRUE:
                mask = None
            else:
                mask = closed_form(em, shown, TensorType("bool", self._shapes[name]))
        elif fact is not None:
            mask = closed_form(em, fact, self._types[name])
        else:
            mask = self._value(name)
            while (inner := em.made_by(mask, "aten.expand.default")) is not None:
                mask = operand(inner)
        return em.emit(
            node.target, trimmed((q, k, v, mask)), attrs, tuple(value.type for value in node.results)
        )

    def _gather(self, node: Node) -> tuple[str, ...] | None:
        """A gather at ranges, each along a dim of its own: slices, a permutation, a reshape."""
        indices = node.operands[1] if node.target == "aten.index.Tensor" else None
        x = operand(node) if indices else ""
        if not isinstance(indices, tuple) or len(indices) != len(self._shapes[x]) or x in self._facts:
            return None
        shape = node.result.type.shape
        ranges: list[tuple[int, int]] = []  # for each dim of x: the dim of the result, the first element
        for index in indices:
            fact = self._facts.get(index or "")
            if not isinstance(fact, Affine) or not isinstance(fact.const, int) or index is None:
                return None
            along = [at for at, coef in enumerate(fact.coefs) if coef]
            if len(along) > 1 or any(fact.coefs[at] != 1 for at in along) or fact.const < 0:
                return None
            ranges.append((along[0] + len(shape) - len(fact.coefs) if along else -1, fact.const))
        used = [dim for dim, _ in ranges if dim >= 0]
        if len(set(used)) != len(used):
            return None
        value = self._value(x)
        for at, (dim, start) in enumerate(ranges):
            value = cut(self._em, value, at, start, start + (shape[dim] if dim >= 0 else 1))
        order = sorted(range(len(ranges)), key=lambda at: ranges[at][0])
        value = permute(self._em, value, tuple(order))
        value = reshape(self._em, value, tuple(size if at in used else 1 for at, size in enumerate(shape)))
        return (expand(self._em, value, shape),)

    def _neutral(self, node: Node) -> tuple[str, ...] | None:
        """An operation with what changes nothing: the operand that it leaves alone."""
        kept: str | None = None
        if node.target in _NEUTRAL and len(node.operands) == 2:
            for at in (0, 1):
                if self._constant(operand(node, at)) == _NEUTRAL[node.target]:
                    kept = operand(node, 1 - at)
        elif node.target == "aten.masked_fill.Scalar" and self._constant(operand(node, 1)) == FALSE:
            kept = operand(node)
        elif node.target in _WHERE and (known := self._constant(operand(node))) in (TRUE, FALSE):
            at = _WHERE[node.target][known == FALSE]
            kept = operand(node, at) if at else None
        if kept is None or self._types[kept].dtype != node.result.type.dtype:
            return None
        return (expand(self._em, self._value(kept), node.result.type.shape),)

    def _constant(self, name: str) -> object:
        """The one number or truth value that all elements of a value are."""
        fact = self._facts.get(name)
        if isinstance(fact, Affine):
            return fact.const if fact.constant else None
        return fact if isinstance(fact, Pred) and fact.constant else None


def _shown(fact: Fact | None, shape: Shape) -> Pred | None:
    """The pairs that a mask shows, if showing just them is the same as using it.

    What a mask adds to a hidden score must vanish against a shown one, so some key must be shown.
    """
    match fact:
        case Pred():
            return fact
        case Affine(const) if fact.constant and const == 0:
            return TRUE
        case Choice(p, yes, no) if yes == 0 and no <= _AWAY and sees_itself(p, shape):
            return p
        case Choice(p, yes, no) if no == 0 and yes <= _AWAY:
            rest = negation(p, shape)
            return rest if sees_itself(rest, shape) else None
    return None
