"""Which shared weights are used alike, and when."""

from __future__ import annotations

from math import prod

import pytest

from autopar.ir.graph import Graph
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.passes import likeness
from autopar.passes.likeness import used_alike
from tests.fold.build import MATRIX, Builder

MESH = Mesh((("tp", 2),))
WAYS = tuple(Layout.parse(text, MESH) for text in ("tp:R", "tp:S(0)", "tp:S(1)"))
LAYERS = 3


def looped() -> tuple[Graph, list[str]]:
    """Layers of two products on weights that come in: the first feeds an activation, the second a sum.

    Nothing computes what the first layer reads, so that its first product is unlike those of the others.
    """
    made = Builder()
    x, *weights = (made.add("input", (), MATRIX, {"name": f"in{at}"}) for at in range(1 + 2 * LAYERS))
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        inner = made.op("aten.relu.default", made.linear(x, up))
        x = made.op("aten.add.Tensor", x, made.linear(inner, down))
    return made.graph(x), weights


def groups(monkeypatch: pytest.MonkeyPatch, *most: int, ways: int = len(WAYS)) -> list[list[int]]:
    """Numbers of the weights that are used alike, where so many ways are allowed at each step."""
    monkeypatch.setattr(likeness, "MOST_WAYS", most)
    block, weights = looped()
    found = used_alike(block, dict.fromkeys(weights, WAYS[:ways]), weights)
    firsts = list(dict.fromkeys(found.values()))
    return [[at for at, name in enumerate(weights) if found[name] == one] for one in firsts]


def test_few_ways_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    every = prod([len(WAYS)] * 2 * LAYERS)
    assert groups(monkeypatch, every, 0, 0) == [[at] for at in range(2 * LAYERS)]


def test_weights_follow_those_at_the_same_place_of_other_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    every = prod([len(WAYS)] * 2 * LAYERS)
    assert groups(monkeypatch, every - 1, every, every) == [[0], [1, 3, 5], [2, 4]]


def test_at_last_all_of_one_type_are_used_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    assert groups(monkeypatch, 1, 1, 1) == [list(range(2 * LAYERS))]


def test_many_weights_are_used_alike_even_in_one_way_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeness, "MOST", 5)
    assert groups(monkeypatch, 1, 1, 1, ways=1) == [[0], [1, 3, 5], [2, 4]]


def test_what_may_be_used_in_other_layouts_is_apart() -> None:
    block, weights = looped()
    given = {name: WAYS[: 2 if name == weights[0] else 3] for name in weights}
    many = {**given, **{f"more{at}": WAYS for at in range(30)}}
    assert used_alike(block, many, weights)[weights[2]] != weights[0]
