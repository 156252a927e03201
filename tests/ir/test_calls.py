"""What calls return, and how one is cut."""

from __future__ import annotations

import pytest

from autopar.ir.calls import carried, collected, pieces, returned, without_collected
from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node
from autopar.ir.live import live
from autopar.ir.text import parse_graph, print_graph
from autopar.ir.verify import verify

TEXT = """\
block @block0 {
  %0: f32[4] = input() {name="in0"}
  %1: f32[4] = param() {slot=0}
  %2: f32[4] = aten.mul.Tensor(%0, %1) {}
  %3: f32[] = aten.sum.default(%2) {}
  return %2, %3
}
graph @main {
  %x: f32[4] = input() {name="x"}
  %y: f32[4], %a: f32[], %b: f32[], %c: f32[] = call(%x) {block="block0", carried=1, count=3, \
params=(("p",), ("q",), ("r",))}
  return %y, %c, %a
}
"""


def parsed(text: str = TEXT) -> tuple[Graph, Node]:
    graph = parse_graph(text)
    verify(graph)
    assert print_graph(graph) == text
    return graph, graph.sources("call")[0]


def test_every_call_gives_its_own() -> None:
    graph, call = parsed()
    assert carried(call) == 1
    assert [[value.name for value in own] for own in collected(call)] == [["a"], ["b"], ["c"]]
    found = [(at, value.name, output) for at, value, output in returned(call, graph.blocks[0])]
    assert found == [(2, "y", "2"), (0, "a", "3"), (1, "b", "3"), (2, "c", "3")]


def test_it_may_be_left_out() -> None:
    without = TEXT.replace(", %a: f32[], %b: f32[], %c: f32[]", "")
    graph, call = parsed(without.replace("return %y, %c, %a", "return %y"))
    assert collected(call) == ((), (), ())
    assert [value.name for _, value, _ in returned(call, graph.blocks[0])] == ["y"]
    assert without_collected(call) is call


@pytest.mark.parametrize("wanted", [("y",), ("y", "b")])
def test_nothing_is_collected_in_vain(wanted: tuple[str, ...]) -> None:
    graph, call = parsed()
    kept = live(Graph(name="main", nodes=graph.nodes, outputs=wanted, blocks=graph.blocks)).sources("call")[0]
    assert kept == (call if "b" in wanted else without_collected(call))


def test_pieces_return_what_the_whole_does() -> None:
    """Each its own, under the name that it has; what is handed on goes from one to the next."""
    graph, call = parsed()
    first, second = pieces(call, [2, 1], ".part")
    assert [value.name for value in first.results] == ["y.part0", "a", "b"]
    assert [value.name for value in second.results] == ["y", "c"]
    assert (first.operands, second.operands) == (("x",), ("y.part0",))
    assert (first.attr("count"), second.attr("count")) == (2, 1)
    assert (first.attr("params"), second.attr("params")) == ((("p",), ("q",)), (("r",),))
    nodes = (*graph.sources("input"), first, second)
    verify(Graph(name="main", nodes=nodes, outputs=graph.outputs, blocks=graph.blocks))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", %c: f32[]", "", "carried=1, but @block0 returns 2 and the call 3 values"),
        ("%b: f32[]", "%b: f32[4]", "results of the call and outputs of @block0 differ"),
    ],
)
def test_others_than_the_blocks_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(parse_graph(TEXT.replace(old, new, 1).replace("return %y, %c, %a", "return %y, %a")))
