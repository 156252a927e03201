"""Rules of operations that pick elements by index: the dims they pick from are whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.ir.derive import Shape, derivation, reduction
from autopar.ir.graph import Node
from autopar.ir.rules import Dim, NodeRule


def _label(sizes: dict[str, int], name: str, extent: int) -> Dim:
    """A dim of its own factor; one of size 1 has none."""
    if extent == 1:
        return ()
    sizes[name] = extent
    return (name,)


def _indexed(node: Node) -> tuple[int, ...]:
    """Dims of the first operand that have an index."""
    given = node.operands[1]
    assert isinstance(given, tuple)
    return tuple(at for at, name in enumerate(given) if name is not None)


def _advanced(
    node: Node, operands: Sequence[Shape | None], rank: int
) -> tuple[dict[str, int], list[Dim], list[tuple[Dim, ...]], tuple[Dim, ...]]:
    """Sizes, labels of the first operand's dims, of each index, and of the indexed tensor's dims.

    The dims of the indices broadcast to factors ``j``; they stand where the indexed dims stood if those
    are neighbours, else in front.
    """
    x = operands[0]
    assert x is not None
    at = _indexed(node)
    count = len(node.operands[1] or ())
    indices = operands[1 : 1 + count]
    width = max(len(shape) for shape in indices if shape is not None)
    extents = [1] * width
    for shape in indices:
        for i, extent in enumerate(shape or ()):
            where = width - len(shape or ()) + i
            extents[where] = max(extents[where], extent)
    sizes: dict[str, int] = {}
    dims = [_label(sizes, f"{'w' if i in at else 'd'}{i}", extent) for i, extent in enumerate(x)]
    picked = [_label(sizes, f"j{i}", extent) for i, extent in enumerate(extents)]
    labels = [
        tuple(picked[width - len(shape) + i] if extent > 1 else () for i, extent in enumerate(shape))
        if shape is not None else ()
        for shape in indices
    ]  # fmt: skip
    rest = [dim for i, dim in enumerate(dims) if i not in at]
    together = at == tuple(range(at[0], at[0] + len(at)))
    first = at[0] if together else 0
    result = (*rest[:first], *picked, *rest[first:])
    assert len(result) == rank
    return sizes, dims, labels, result


@derivation
def index(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``x[:, i, j]``: dims with an index are whole, the others and those of the indices are free."""
    sizes, dims, labels, result = _advanced(node, operands, len(results[0]))
    whole = frozenset(f for f in sizes if f.startswith("w"))
    return NodeRule(
        sizes=sizes, operands=(tuple(dims), *labels), results=(result,), whole=whole, partial=((0,),)
    )


@derivation
def index_put(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``x[:, i, j] = values``: dims without an index are free, the indices and the dims they pick are whole."""
    x, values = operands[0], operands[-1]
    assert x is not None and values is not None
    at = _indexed(node)
    width = max(len(shape) for shape in operands[1:-1] if shape is not None)
    rank = len(x) - len(at) + width
    sizes, dims, labels, result = _advanced(node, operands[:-1], rank)
    tail = result[len(result) - len(values) :]
    given = tuple(dim if extent > 1 else () for dim, extent in zip(tail, values, strict=True))
    whole = frozenset(f for f in sizes if not f.startswith("d"))
    return NodeRule(
        sizes=sizes, operands=(tuple(dims), *labels, given), results=(tuple(dims),), whole=whole
    )


@derivation
def pick(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``b… !n r…, b… k… -> b… k… r…``: each row picks elements of its own; ``lead`` counts the b."""
    x, index = operands[0], operands[1]
    assert x is not None and index is not None
    lead = int(str(node.attr("lead")))
    sizes: dict[str, int] = {}
    b = tuple(_label(sizes, f"b{i}", extent) for i, extent in enumerate(x[:lead]))
    n = _label(sizes, "n", x[lead])
    rest = tuple(_label(sizes, f"r{i}", extent) for i, extent in enumerate(x[lead + 1 :]))
    k = tuple(_label(sizes, f"k{i}", extent) for i, extent in enumerate(index[lead:]))
    return NodeRule(
        sizes=sizes, operands=((*b, n, *rest), (*b, *k)), results=((*b, *k, *rest),), whole=frozenset(n),
        partial=((0,),),
    )  # fmt: skip


@derivation
def index_along(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """index_add, index_copy, index_fill: ``dim`` is whole, and so is the index, the only vector."""
    at = int(str(node.attr("dim")))
    rank = len(results[0])
    at += rank if at < 0 else 0
    sizes: dict[str, int] = {}

    def label(name: str, shape: Shape | None) -> tuple[Dim, ...]:
        if shape is None or not shape:
            return ()
        if name == "i1_":
            return tuple(_label(sizes, "n", extent) for extent in shape)
        return tuple(_label(sizes, f"{name}{i}" if i == at else f"d{i}", extent) for i, extent in enumerate(shape))

    inputs = tuple(label(f"i{n}_", shape) for n, shape in enumerate(operands))
    outputs = (label("r", results[0]),)
    whole = frozenset(f for f in sizes if not f.startswith("d"))
    return NodeRule(sizes=sizes, operands=inputs, results=outputs, whole=whole)


@derivation
def picking_reduction(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Reductions whose results all have the same shape, a value and an index, say; ``dim`` is whole."""
    rule = reduction(node, operands, results)
    kept = {f for dim in rule.results[0] for f in dim}
    whole = frozenset(f for f in rule.sizes if f not in kept)
    return replace(rule, results=rule.results * len(results), whole=whole, partial=())


@derivation
def first_operand(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Element by element of the first operand, looked up in the others, which are whole."""
    del node
    sizes: dict[str, int] = {}
    dims = tuple(_label(sizes, f"d{i}", extent) for i, extent in enumerate(results[0]))
    tables = tuple(
        tuple(_label(sizes, f"w{n}_{i}", extent) for i, extent in enumerate(shape or ()))
        for n, shape in enumerate(operands[1:])
    )
    whole = frozenset(f for f in sizes if f.startswith("w"))
    return NodeRule(sizes=sizes, operands=(dims, *tables), results=(dims,), whole=whole)


@derivation
def last_dims(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Two dims (the last two, or ``dim1`` and ``dim2``) become one at the end, or the other way round."""
    x, y = operands[0], results[0]
    assert x is not None
    large = x if len(x) > len(y) else y
    defaults = (0, 1) if large is x else (-2, -1)
    first, second = (
        int(str(node.attr(f"dim{at}", default))) % len(large) for at, default in enumerate(defaults, start=1)
    )
    sizes: dict[str, int] = {}
    full = [_label(sizes, f"{'w' if i in (first, second) else 'd'}{i}", extent) for i, extent in enumerate(large)]
    rest = tuple(dim for i, dim in enumerate(full) if i not in (first, second))
    small = (*rest, _label(sizes, "w", (y if large is x else x)[-1]))
    whole = frozenset(f for f in sizes if f.startswith("w"))
    pair = (tuple(full), small) if large is x else (small, tuple(full))
    return NodeRule(sizes=sizes, operands=(pair[0],), results=(pair[1],), whole=whole, partial=((0,),))


@derivation
def histogram(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """How many elements fall into each bin from ``min`` to ``max``; the elements' own bounds if the two are equal."""
    counted = reduction(node, operands, [()])
    sizes, bins = dict(counted.sizes), results[0][0]
    whole = {"bin"} if node.attr("min", 0) != node.attr("max", 0) else {"bin", *sizes}
    result = _label(sizes, "bin", bins)
    return NodeRule(sizes=sizes, operands=counted.operands, results=((result,),), whole=frozenset(whole & {*sizes}))
