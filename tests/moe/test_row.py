"""What the op table says of experts, against what the kernel does."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.graph import Node, Value, sorted_attrs
from autopar.ir.optable import node_rule, row
from autopar.ir.rules import count_flops
from autopar.ir.types import TensorType
from autopar.runtime.experts import experts
from tests.moe.plain import Sizes, operands

SIZES = Sizes(tokens=32, each=2, experts=4, hidden=8, inner=12)


def node(gate: str, **attrs: int) -> Node:
    given = sorted_attrs({"gate": gate, **attrs})
    result = Value("y", TensorType("f64", (SIZES.tokens, SIZES.hidden)))
    return Node(results=(result,), target="autopar.experts", operands=("x", "i", "w", "up", "down"), attrs=given)


def sizes_of(gate: str, columns: int, **attrs: int) -> dict[str, int]:
    shapes = [None if x is None else tuple(x.shape) for x in operands(SIZES, columns=columns)]
    return dict(node_rule(node(gate, **attrs), shapes, [(SIZES.tokens, SIZES.hidden)]).sizes)


@pytest.mark.parametrize(("gate", "columns", "marked"), [("silu-glu", 2, False), ("relu", 1, True)])
def test_autograd_keeps_what_the_row_says(gate: str, columns: int, marked: bool) -> None:
    """The operands, for the index the order of as many rows, what the first projection gave; and where experts end."""
    given, kept = operands(SIZES, columns=columns, marked=marked), []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.nbytes)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        experts(*given, gate=gate)  # type: ignore[arg-type]
    entry = row(node(gate))
    said = sum(x.nbytes for at, x in enumerate(given) if x is not None and entry.keeps(at))
    said += 8 * count_flops(entry.inner, sizes_of(gate, columns))
    assert sum(kept) == said + 4 * SIZES.experts


def test_work_is_that_of_the_rows_that_there_are() -> None:
    """Each token's experts, not all of them; and of a part of the experts its share of the rows."""
    entry = row(node("silu-glu"))
    rows = SIZES.tokens * SIZES.each
    whole = 2 * rows * SIZES.hidden * 3 * SIZES.inner
    assert count_flops(entry.flops, sizes_of("silu-glu", 2)) == whole
    assert count_flops(entry.flops, sizes_of("silu-glu", 2, among=8)) == whole // 2
