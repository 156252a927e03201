"""Rule of linear attention by a gated delta rule: batches and heads may be split."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.derive import Shape, derivation
from autopar.ir.graph import Node
from autopar.ir.rules import Dim, NodeRule


@derivation
def delta_rule(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``b !s h !d, b !s h !d, b !s (h r) !v, b !s (h r) [!d], b !s (h r) -> b !s (h r) !v``.

    Each head of queries and keys serves r heads of values. The decay, fourth, is of a head, or of each channel of it.
    Sizes besides: tokens of a chunk ``c``, and the float32 numbers ``kept`` of each token and head of values.
    """
    del results
    q, _, v, decay, _ = operands
    assert q is not None and v is not None and decay is not None
    chunk = int(str(node.attr("chunk")))
    sizes = {"b": q[0], "s": q[1], "h": q[2], "r": v[2] // q[2], "d": q[3], "v": v[3], "c": chunk}
    copies = (1 + (sizes["r"] > 1)) if node.results[0].type.dtype == "f32" else 0
    sizes["kept"] = _kept(q[3], v[3], chunk, channels=len(decay) == 4, copies=copies)

    def dims(*names: Dim) -> tuple[Dim, ...]:
        return tuple(tuple(name for name in dim if sizes[name] > 1) for dim in names)

    heads = dims(("b",), ("s",), ("h", "r"))
    keys, values = dims(("b",), ("s",), ("h",), ("d",)), (*heads, *dims(("v",)))
    return NodeRule(
        sizes=sizes,
        operands=(keys, keys, values, (*heads, *dims(("d",))) if len(decay) == 4 else heads, heads),
        results=(values,),
        whole=frozenset({"s", "d", "v", "c", "kept"}),
    )


def _kept(d: int, v: int, c: int, *, channels: bool, copies: int) -> int:
    """What autograd keeps in transformers 5.23, for each token and head: counted by hooks on what is saved.

    ``copies``: of queries and keys of float32, which are not cast, as they are put in order and repeated.
    """
    if channels:  # of each pair of tokens in a chunk one decay a channel, three times; the inverse row by row
        return 3 * c * d + c * c // 3 + 12 * d + 3 * v + 2 * c + d * v // c + 5
    return (8 + 2 * copies) * d + 3 * v + 5 * c + d * v // c + 6
