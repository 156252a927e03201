"""Rules of experts: tokens, experts and the inner dim may be split, hidden dims and choices stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.ir.derive import Shape, derivation
from autopar.ir.formulas import parse_gate
from autopar.ir.graph import Node
from autopar.ir.rules import Dim, NodeRule


@derivation
def experts(node: Node, operands: Sequence[Shape | None], results: Sequence[Shape]) -> NodeRule:
    """``t !h, t !k, t !k, e (!c i) !h, e !h i, e (!c i), t i -> t !h``; the weights' last dims change places if
    transposed.

    The result is Partial where i or e is split: each device adds up what its columns or its experts give. Sizes
    besides: ``products`` that a row goes through, ``all`` experts that the rows of the t here are shared out among, of
    which the e here are a part: ``among`` says so of a lowered one; ``marked``: 1 where the last operand is there.
    """
    del results
    x, index, _, up, down, *optional = operands
    assert x is not None and index is not None and up is not None and down is not None
    gate, transposed = parse_gate(str(node.attr("gate"))), bool(node.attr("transposed", False))
    inner: Dim = ("i",) if not gate.glu else ("i", "c") if gate.pairs else ("c", "i")
    sizes = {
        "t": x[0], "h": x[1], "k": index[1], "e": up[0], "c": gate.columns, "i": down[1 if transposed else 2],
        "products": gate.columns + 1, "all": int(str(node.attr("among", up[0]))),
        "marked": int(len(optional) > 1 and optional[1] is not None),
    }  # fmt: skip
    first = (("e",), ("h",), inner) if transposed else (("e",), inner, ("h",))
    second = (("e",), ("i",), ("h",)) if transposed else (("e",), ("h",), ("i",))
    labels = (
        (("t",), ("h",)), (("t",), ("k",)), (("t",), ("k",)), first, second, (("e",), inner), (("t",), ("i",))
    )  # fmt: skip
    given = tuple(() if shape is None else dims for dims, shape in zip(labels, operands, strict=False))
    return NodeRule(
        sizes=sizes, operands=given, results=((("t",), ("h",)),), whole=frozenset({"h", "k", "c"}),
        exchange=("t", "e"),
    )  # fmt: skip
