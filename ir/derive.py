"""Rules of operations whose dims depend on attributes: reshape, split, reductions and the like."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from autopar.ir.graph import Node
from autopar.ir.rules import Dim, NodeRule, instantiate

Shape = tuple[int, ...]
Derivation = Callable[[Node, Sequence["Shape | None"], Sequence[Shape]], NodeRule]
DERIVATIONS: dict[str, Derivation] = {}


def derivation(function: Derivation) -> Derivation:
    """Register under the function's name, as the op table refers to it."""
    DERIVATIONS[function.__name__] = function
    return function


def _ints(value: object) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,)
    return tuple(int(v) for v in value) if isinstance(value, tuple) else ()


def _dim(value: object, rank: int) -> int:
    dim = int(value) if isinstance(value, int) else 0
    return dim + rank if dim < 0 else dim


def _own(prefix: str, shape: Shape) -> tuple[Dim, ...]:
    """One factor a dim, named by its position; none for dims of size 1."""
    return tuple((f"{prefix}{i}",) if extent > 1 else () for i, extent in enumerate(shape))


def _sizes(*labelled: tuple[tuple[Dim, ...], Shape]) -> dict[str, int]:
    return {
        dim[0]: extent
        for dims, shape in labelled
        for dim, extent in zip(dims, shape, strict=True)
        if len(dim) == 1
    }


@derivation
def replicated(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Nothing may be split: every device does the same work."""
    del node
    inputs = tuple(_own(f"i{n}_", shape or ()) for n, shape in enumerate(operands))
    outputs = tuple(_own(f"r{n}_", shape) for n, shape in enumerate(results))
    sizes = _sizes(
        *zip(inputs, [s or () for s in operands], strict=True), *zip(outputs, results, strict=True)
    )
    return NodeRule(sizes=sizes, operands=inputs, results=outputs, whole=frozenset(sizes))


@derivation
def cast(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """A number of which devices hold summands may be cast before it is added up, but to no coarser type."""
    summands = results[0] == () and node.results[0].type.dtype in ("f32", "f64")
    return replace(instantiate("*b -> *b", operands, results), partial=((0,),) if summands else ())


@derivation
def assign(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """The first operand passes as it is; what is written and what with are whole on every device."""
    labels = tuple(_own(f"o{n}_", shape or ()) for n, shape in enumerate(operands))
    sizes = _sizes(*zip(labels, [shape or () for shape in operands], strict=True))
    through = {factor for dim in labels[0] for factor in dim}
    del node, results
    return NodeRule(sizes=sizes, operands=labels, results=labels[:1], whole=frozenset(sizes) - through)


def common_factors(
    left: Shape, right: Shape
) -> tuple[dict[str, int], tuple[Dim, ...], tuple[Dim, ...], set[str]]:
    """Factors that explain a reshape: sizes, labels of both sides, and those that cannot be split.

    Both shapes are cut where their cumulative products agree; inside such a group every boundary of
    either side becomes a factor boundary if they divide each other, else the group is one whole each.
    """
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    out: tuple[list[Dim], list[Dim]] = ([() for _ in left], [() for _ in right])
    i = j = 0
    while i < len(left) or j < len(right):
        first_i, first_j, a, b = i, j, 1, 1
        while a != b or (a == 1 and (i < len(left) or j < len(right))):
            if (a <= b and i < len(left)) or j >= len(right):
                a, i = a * left[i], i + 1
            else:
                b, j = b * right[j], j + 1
        i, j = (i, j) if a else (len(left), len(right))  # of no elements: what follows need not agree
        ends = [_ends(left[first_i:i]), _ends(right[first_j:j])]
        cuts = sorted({e for side in ends for e in side} | {1})
        chain = 0 not in cuts and all(y % x == 0 for x, y in itertools.pairwise(cuts))
        if not chain:
            cuts = [1, math.prod(left[first_i:i])]
        names = [f"f{first_i}_{k}" for k in range(len(cuts) - 1)]
        sizes.update({n: hi // lo for n, lo, hi in zip(names, cuts, cuts[1:], strict=False)})
        for side, shape, start in ((out[0], left[first_i:i], first_i), (out[1], right[first_j:j], first_j)):
            at = 1
            for k, extent in enumerate(shape):
                if chain:
                    inside = [n for n, lo in zip(names, cuts, strict=False) if at <= lo < at * extent]
                    side[start + k] = tuple(n for n in inside if sizes[n] > 1)
                elif extent > 1:
                    own = f"w{id_of(side is out[1])}{start + k}"
                    sizes[own] = extent
                    whole.add(own)
                    side[start + k] = (own,)
                at *= extent
    return sizes, tuple(out[0]), tuple(out[1]), whole


def id_of(right: bool) -> str:
    return "r" if right else "l"


def _ends(shape: Shape) -> list[int]:
    out, at = [], 1
    for extent in shape:
        at *= extent
        out.append(at)
    return out


@derivation
def reshape(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``[b,s,4096] -> [b,s,32,128]`` is ``b s (h d) -> b s h d``."""
    del node
    assert operands[0] is not None
    sizes, left, right, whole = common_factors(operands[0], results[0])
    return NodeRule(sizes=sizes, operands=(left,), results=(right,), whole=frozenset(whole), partial=((0,),))


@derivation
def permute(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    assert operands[0] is not None
    dims = _own("d", operands[0])
    order = _ints(node.attr("dims"))
    return NodeRule(
        sizes=_sizes((dims, operands[0])),
        operands=(dims,),
        results=(tuple(dims[i] for i in order),),
        partial=((0,),),
    )


@derivation
def expand(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """A dim of size 1 that grows: the new factor stands in the result only."""
    del node
    assert operands[0] is not None
    out = _own("d", results[0])
    lead = len(results[0]) - len(operands[0])
    left = tuple(out[i + lead] if extent > 1 else () for i, extent in enumerate(operands[0]))
    return NodeRule(sizes=_sizes((out, results[0])), operands=(left,), results=(out,), partial=((0,),))


@derivation
def split(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Equal parts: ``(!c n) -> n, n, n``; unequal parts keep the dim whole."""
    assert operands[0] is not None
    shape = operands[0]
    dim = _dim(node.attr("dim", 0), len(shape))
    dims = list(_own("d", shape))
    sizes = _sizes((tuple(dims), shape))
    parts = {result[dim] for result in results}
    equal = len(parts) == 1 and next(iter(parts)) > 1
    whole: set[str] = set()
    labels = []
    if equal:
        sizes |= {"c": len(results), "n": next(iter(parts))}
        sizes.pop(f"d{dim}", None)
        dims[dim] = ("c", "n") if len(results) > 1 else ("n",)
        whole.add("c")
    for index, result in enumerate(results):
        out = list(dims)
        if equal:
            out[dim] = ("n",)
        elif result[dim] > 1:
            out[dim] = (f"p{index}",)
            sizes[f"p{index}"] = result[dim]
            whole.add(f"p{index}")
        else:
            out[dim] = ()
        labels.append(tuple(out))
    if not equal:
        whole.update(dims[dim])
    return NodeRule(
        sizes=sizes, operands=(tuple(dims),), results=tuple(labels), whole=frozenset(whole), partial=((0,),)
    )


def _one_dim_whole(
    node: Node, operands: Sequence[Shape | None], results: Sequence[Shape], at: set[int], *, linear: bool
) -> NodeRule:
    """Same rank everywhere, dims in ``at`` whole and possibly of different sizes, all others shared."""
    sizes: dict[str, int] = {}
    whole: set[str] = set()

    def label(prefix: str, shape: Shape) -> tuple[Dim, ...]:
        dims: list[Dim] = []
        for i, extent in enumerate(shape):
            name = f"{prefix}{i}" if i in at else f"d{i}"
            if i in at:
                whole.add(name)
            if extent > 1:
                sizes[name] = extent
            dims.append((name,) if extent > 1 else ())
        return tuple(dims)

    del node
    inputs = tuple(label(f"i{n}_", shape or ()) for n, shape in enumerate(operands))
    outputs = tuple(label(f"r{n}_", shape) for n, shape in enumerate(results))
    carried = (tuple(range(len(operands))),) if linear else ()
    return NodeRule(
        sizes=sizes, operands=inputs, results=outputs, whole=frozenset(whole & set(sizes)), partial=carried
    )


@derivation
def along_dim(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Works along ``dim`` and needs it whole: softmax, cumsum."""
    rank = len(results[0])
    return _one_dim_whole(node, operands, results, {_dim(node.attr("dim", -1), rank)}, linear=False)


@derivation
def slice_dim(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """slice and cat along ``dim``: linear, that dim whole."""
    return _one_dim_whole(node, operands, results, {_dim(node.attr("dim", 0), len(results[0]))}, linear=True)


@derivation
def turned(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """roll and flip: linear, the dims in ``dims`` whole."""
    at = {_dim(dim, len(results[0])) for dim in _ints(node.attr("dims"))}
    return _one_dim_whole(node, operands, results, at, linear=True)


@derivation
def diff(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Neighbours along ``dim``, the last one if absent: linear, that dim whole."""
    at = {_dim(node.attr("dim", -1), len(results[0]))}
    return _one_dim_whole(node, operands, results, at, linear=True)


@derivation
def index_select(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``dim`` of the first operand is whole, the index is not: ``!k d, n -> n d``; linear in the first operand."""
    assert operands[0] is not None and operands[1] is not None
    rule = _one_dim_whole(
        node, operands[:1], results, {_dim(node.attr("dim", 0), len(results[0]))}, linear=True
    )
    index = _own("n", operands[1])
    at = f"r0_{_dim(node.attr('dim', 0), len(results[0]))}"
    sizes = {f: n for f, n in rule.sizes.items() if f != at}
    return replace(
        rule,
        sizes={**sizes, **_sizes((index, operands[1]))},
        operands=(*rule.operands, index),
        results=tuple(tuple(index[0] if d == (at,) else d for d in dims) for dims in rule.results),
        whole=rule.whole - {at},
    )


@derivation
def pad(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Dims that it pads or crops are whole, also where as much is cropped on one side as padded on the other."""
    assert operands[0] is not None
    amounts, rank = node.attr("pad"), len(results[0])
    assert isinstance(amounts, tuple)  # before and behind the last dim, then the one before it, …
    changed = {rank - 1 - at // 2 for at, amount in enumerate(amounts) if amount}
    return _one_dim_whole(node, operands, results, changed, linear=not node.attr("value"))


@derivation
def scatter(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Along ``dim`` whole; other dims are shared where the index covers the operand."""
    dim = _dim(node.attr("dim", 0), len(results[0]))
    short = {
        i for i, extent in enumerate(results[0]) if any(s is not None and s[i] != extent for s in operands)
    }
    return _one_dim_whole(node, operands, results, {dim} | short, linear=False)


@derivation
def gather(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """As scatter, but each element of the index along ``dim`` gives one of the result: shared, not whole."""
    rule = scatter(node, operands, results)
    dim = _dim(node.attr("dim", 0), len(results[0]))
    same = {f"i1_{dim}": "n", f"r0_{dim}": "n"}

    def renamed(labels: tuple[tuple[Dim, ...], ...]) -> tuple[tuple[Dim, ...], ...]:
        return tuple(tuple(tuple(same.get(f, f) for f in d) for d in dims) for dims in labels)

    return replace(
        rule,
        sizes={same.get(f, f): n for f, n in rule.sizes.items()},
        operands=renamed(rule.operands),
        results=renamed(rule.results),
        whole=rule.whole - set(same),
    )


@derivation
def reduction(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """Sum over ``dim`` (all dims if absent): the factors of those dims are contracted."""
    assert operands[0] is not None
    rank = len(operands[0])
    reduced = {_dim(d, rank) for d in _ints(node.attr("dim"))} or set(range(rank))
    dims = _own("d", operands[0])
    kept = tuple(() if i in reduced else dim for i, dim in enumerate(dims))
    if not node.attr("keepdim", False):
        kept = tuple(dim for i, dim in enumerate(kept) if i not in reduced)
    return NodeRule(sizes=_sizes((dims, operands[0])), operands=(dims,), results=(kept,), partial=((0,),))


@derivation
def nonlinear_reduction(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """A reduction whose parts cannot be added up: the reduced dims are whole."""
    rule = reduction(node, operands, results)
    kept = {f for dim in rule.results[0] for f in dim}
    whole = frozenset(f for f in rule.sizes if f not in kept)
    return NodeRule(sizes=rule.sizes, operands=rule.operands, results=rule.results, whole=whole)


@derivation
def unreduced(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """A loss element by element; one that reduces its elements by itself is whole."""
    if node.attr("reduction") != 0:
        return replicated(node, operands, results)
    return instantiate(", ".join(["*b"] * len(operands)) + " -> *b", operands, results)


@derivation
def layer_norm(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``*b !d, !d, !d -> *b !d`` with as many d as are normalized."""
    count = len(_ints(node.attr("normalized_shape"))) or 1
    dims = _own("d", results[0])
    tail = dims[len(dims) - count :]
    return NodeRule(
        sizes=_sizes((dims, results[0])),
        operands=tuple(() if s is None else (dims if i == 0 else tail) for i, s in enumerate(operands)),
        results=(dims,),
        whole=frozenset(f for dim in tail for f in dim),
    )


@derivation
def embedding(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``v d, *b -> *b d``; gradients scaled by how often an id occurs need every id and the whole table."""
    rule = instantiate("v d, *b -> *b d", operands, results)
    return replace(rule, whole=frozenset(rule.sizes)) if node.attr("scale_grad_by_freq") else rule


@derivation
def drawn_attention(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``attention`` whose last operand is the state of the random numbers."""
    rule = attention(node, operands[:-1], results)
    return replace(rule, operands=(*rule.operands, ((),)))


@derivation
def attention(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``b h sq !d, b h !sk !d, b h !sk !v -> b h sq !v``; grouped heads; a mask broadcasts.

    With dropout inside, causal rows stay whole: the operation on part of the rows knows none.
    """
    q, k, v = operands[0], operands[1], operands[2]
    assert q is not None and k is not None and v is not None
    batch = tuple((f"b{i}",) if extent > 1 else () for i, extent in enumerate(q[:-3]))
    sizes = {f"b{i}": extent for i, extent in enumerate(q[:-3])}
    sizes |= {"g": k[-3], "h": q[-3] // k[-3], "sq": q[-2], "sk": k[-2], "d": q[-1], "v": v[-1]}
    heads = tuple(f for f in ("g", "h") if sizes[f] > 1)
    kv = tuple(f for f in ("g",) if sizes[f] > 1)
    labels: list[tuple[Dim, ...]] = [
        (*batch, heads, ("sq",), ("d",)), (*batch, kv, ("sk",), ("d",)), (*batch, kv, ("sk",), ("v",))
    ]  # fmt: skip
    if len(operands) > 3 and (mask := operands[3]) is not None:
        full = (*batch, heads, ("sq",), ("sk",))
        labels.append(
            tuple(
                dim if extent > 1 else ()
                for dim, extent in zip(full[len(full) - len(mask) :], mask, strict=True)
            )
        )
    rows = {"sq"} if node.attr("dropout_p") and node.attr("is_causal") else set()
    return NodeRule(
        sizes=sizes,
        operands=tuple(labels) + ((),) * (len(operands) - len(labels)),
        results=((*batch, heads, ("sq",), ("v",)),),
        whole=frozenset({"sk", "d", "v", *rows}),
    )
