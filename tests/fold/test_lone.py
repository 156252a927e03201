"""A layer of its own ahead of like layers is a block, called once."""

from __future__ import annotations

import random

import pytest

from autopar.ir.graph import Graph
from autopar.ir.text import print_graph
from autopar.ir.verify import verify
from autopar.passes.fold import fold
from autopar.passes.order import canonical_form
from autopar.passes.unfold import unfold
from tests.fold.build import MATRIX, Builder, calls, disguised


def folded(graph: Graph) -> Graph:
    """The fold, for which the law holds whatever the order and the names."""
    result = fold(graph)
    verify(result, after="fold")
    assert canonical_form(unfold(result)) == canonical_form(graph)
    assert print_graph(fold(disguised(graph, random.Random(3)))) == print_graph(result)
    return result


def begun(build: Builder) -> str:
    return build.op("aten.mean.dim", build.input(type_=MATRIX))


def odd(build: Builder, x: str, weight: str | None = None) -> str:
    """Of as many operations as the layers behind it, and of three parameters."""
    gate = build.op("aten.sigmoid.default", build.linear(x, weight))
    gated = build.op("aten.mul.Tensor", gate, build.linear(x))
    return build.op("aten.add.Tensor", x, build.linear(gated))


def layers(build: Builder, x: str, count: int = 3) -> str:
    for _ in range(count):
        x = build.residual(x)
    return x


def test_what_begins_and_ends_as_a_layer_does_is_one() -> None:
    """Its parameters are its own; what comes before it stays outside."""
    build = Builder()
    result = folded(build.graph(layers(build, odd(build, begun(build)))))
    assert calls(result) == [(1, 1, 6), (3, 1, 5)]
    first = result.sources("call")[0]
    assert first.attr("params") == (("p1", "p2", "p3"),)
    assert [node.target for node in result.nodes if node.operands] == ["aten.mean.dim", "call", "call"]


def test_between_two_runs() -> None:
    build = Builder()
    x = layers(build, odd(build, layers(build, begun(build), 2)))
    assert calls(folded(build.graph(x))) == [(2, 1, 5), (1, 1, 6), (3, 1, 5)]


def test_several_are_one() -> None:
    """The whole way from where a layer could begin."""
    build = Builder()
    x = odd(build, begun(build))
    x = build.op("aten.add.Tensor", x, build.op("aten.neg.default", build.linear(build.op("aten.relu.default", x))))
    assert calls(folded(build.graph(layers(build, x)))) == [(1, 1, 10), (3, 1, 5)]


@pytest.mark.parametrize("both", [False, True])
def test_it_is_handed_no_more_than_a_call_of_the_run(both: bool) -> None:
    """What begins in the middle of a layer reads much that the layer made before."""
    build = Builder()
    x, table = begun(build), build.op("aten.mul.Tensor", build.input("given", MATRIX), build.param(), type_=MATRIX)
    x = build.op("aten.matmul.default", odd(build, x), table)
    for _ in range(3):
        x = build.residual(build.op("aten.matmul.default", x, table) if both else x)
    assert [call[0] for call in calls(folded(build.graph(x)))] == ([1, 3] if both else [3])


@pytest.mark.parametrize("used", ["what it begins with", "what it makes"])
def test_its_ends_may_be_used_elsewhere(used: str) -> None:
    build = Builder()
    x = begun(build)
    made = odd(build, x)
    out = layers(build, made)
    assert calls(folded(build.graph(out, x if used == "what it begins with" else made))) == [(1, 1, 6), (3, 1, 5)]


def test_what_is_used_from_within_keeps_it_in_the_open() -> None:
    build = Builder()
    x = begun(build)
    inside = build.linear(build.op("aten.neg.default", x))
    made = build.op("aten.add.Tensor", x, build.linear(build.op("aten.sigmoid.default", inside)))
    out = layers(build, made)
    assert calls(folded(build.graph(out, build.op("aten.exp.default", inside)))) == [(3, 1, 5)]
    assert calls(folded(build.graph(out))) == [(1, 1, 5), (3, 1, 5)]
    result = folded(build.graph(out, inside))  # what is returned is collected
    assert calls(result) == [(1, 1, 5), (3, 1, 5)]
    assert result.outputs[1] == result.sources("call")[0].results[1].name


@pytest.mark.parametrize("sums", [1, 2])
def test_it_makes_all_that_a_run_begins_with(sums: int) -> None:
    """Sums along the layers, which the first layer begins; what else it returns is collected of it, too."""
    build = Builder()
    x, totals, returned = begun(build), list[str](), list[str]()
    for layer in range(4):
        inside = build.linear(x)
        parts = [build.op("aten.exp.default", build.op("aten.neg.default", inside)) for _ in range(sums)]
        totals = [build.op("aten.mul.Tensor", *both) for both in zip(totals, parts, strict=True)] if layer else parts
        returned.append(build.op("aten.sigmoid.default", inside))
        x = build.op("aten.add.Tensor", x, build.linear(build.op("aten.relu.default", inside)))
    ends = build.linear(x)
    for total in totals:
        ends = build.op("aten.sub.Tensor", ends, total)
    result = folded(build.graph(ends, *returned))
    assert calls(result) == [(1, 1, 5 + 2 * sums), (3, 1 + sums, 5 + 3 * sums)]
    assert [len(call.results) for call in result.sources("call")] == [2 + sums, 1 + sums + 3]


def test_a_parameter_that_others_use_is_handed_in() -> None:
    build = Builder()
    tied = build.param()
    out = layers(build, odd(build, begun(build), tied))
    result = folded(build.graph(build.linear(out, tied)))
    assert calls(result) == [(1, 1, 6), (3, 1, 5)]
    assert len(result.sources("call")[0].operands) == 2


def test_a_stem_is_none() -> None:
    """It is too small, or makes another type of value than it begins with."""
    build = Builder()
    x = begun(build)
    assert calls(folded(build.graph(layers(build, build.op("aten.add.Tensor", x, build.linear(x)))))) == [(3, 1, 5)]


def test_blocks_call_no_blocks() -> None:
    """A graph that is folded already stays as it is."""
    build = Builder()
    once = folded(build.graph(layers(build, odd(build, layers(build, begun(build), 2)))))
    assert print_graph(fold(once)) == print_graph(once)
