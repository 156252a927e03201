"""Random operations are found wherever they stand, and named."""

from __future__ import annotations

import pytest

from autopar.ir.errors import UnsupportedError
from autopar.ir.text import parse_graph
from autopar.passes.randomness import random_nodes, refuse_random

DROPOUT = """
graph @main {
  %x: f32[4,8] = input() {name="x"}
  %y: f32[4,8] = aten.dropout.default(%x) {p=0.1, train=true}
  return %y
}
"""
ATTENTION = """
graph @main {
  %q: f32[1,2,4,8] = input() {name="q"}
  %y: f32[1,2,4,8] = aten.scaled_dot_product_attention.default(%q, %q, %q) {dropout_p=0.1}
  return %y
}
"""


@pytest.mark.parametrize("text", [DROPOUT, ATTENTION], ids=["dropout", "attention"])
def test_an_operation_that_draws_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"aten\.(dropout|scaled).* draws random numbers"):
        refuse_random(parse_graph(text))


def test_attention_without_dropout_draws_nothing() -> None:
    assert not list(random_nodes(parse_graph(ATTENTION.replace("dropout_p=0.1", ""))))
