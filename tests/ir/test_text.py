"""The text of a graph and back."""

import math

import pytest
from hypothesis import given

from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node, Value
from autopar.ir.text import parse_graph, print_graph
from autopar.ir.types import TensorType
from tests.ir.graphs import graphs, same

LOWERED = """\
block @block0 mesh(dp=2, tp=4) {
  %0: bf16[8,1024]{dp:S(0), tp:R*} = input() {name="in0"}
  %1: bf16[1024,1024]{dp:R, tp:S(0)} = param() {slot=0}
  %2: bf16[8,1024]{dp:S(0), tp:S(1)} = aten.linear.default(%0, %1) {}
  return %2
}
graph @main mesh(dp=2, tp=4) {
  %x: bf16[8,1024]{dp:S(0), tp:R} = input() {name="x"}
  %i: i64[]{dp:R, tp:R} = input() {name="i"}
  %y: bf16[8,1024] = call(%x) {block="block0", carried=1, count=2, params=(("a.w",), ("b.w",))}
  %a: bf16[8,512]{dp:P(sum), tp:S(1)/4}, %b: bf16[8,512] = aten.split.Tensor(%y) {dim=1, sizes=(512, 512)}
  %z: f16[8] = aten.index.Tensor(%a, [%i, none]) {a=none, b=true, c=-1e-07, d=inf, e="a \\"x\\"\\n", f=()}
  aten.check(none, []) {}
  return %z, %b
}
"""


@given(graphs())
def test_parsing_undoes_printing(graph):
    """Every graph is the parse of its text, down to the kinds of its numbers."""
    text = print_graph(graph)
    assert same(parse_graph(text), graph)
    assert print_graph(parse_graph(text)) == text


def test_a_lowered_graph_prints_as_it_was_written():
    """One text with all that may stand in it."""
    graph = parse_graph(LOWERED)
    assert print_graph(graph) == LOWERED
    assert graph.block("block0").nodes[0].result.layout is not None
    assert graph.nodes[-2].attr("e") == 'a "x"\n'
    assert graph.nodes[-2].operands == ("a", ("i", None))


def test_not_a_number_survives():
    """It equals nothing, so the property above leaves it out."""
    node = Node(
        results=(Value("x", TensorType("f32", ())),), target="aten.full.default", attrs=(("v", math.nan),)
    )
    text = print_graph(Graph(name="main", nodes=(node,), outputs=()))
    assert print_graph(parse_graph(text)) == text


def test_source_is_no_part_of_the_text():
    """Where a node came from is data for messages."""
    node = Node(results=(Value("x", TensorType("f32", ())),), target="aten.rand.default", source="net.0")
    assert "net.0" not in print_graph(Graph(name="main", nodes=(node,), outputs=("x",)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%x: f33[2] = input() {}", "unknown element type 'f33'"),
        ("%x: f32[2]{dp:R} = input() {}", "a layout in a graph without a mesh"),
        ("%x f32[2] = input() {}", "expected a result, as in"),
        ("%x: f32[2] = input {}", "expected an operation"),
        ("%x: f32[2] = input()", "expected ` {`"),
        ("%x: f32[2] = input(x) {}", "expected an operand"),
        ("%x: f32[2] = input() {name=x}", "expected a value"),
        ('%x: f32[2] = input() {name="x"} {}', "expected the end of the line"),
        ("return x", "expected a value, as in"),
    ],
)
def test_an_error_shows_the_line_and_the_place(line, message):
    """The number of the line, its text, and a mark under what is wrong."""
    with pytest.raises(IRError) as caught:
        parse_graph(f"graph @main {{\n  {line}\n  return\n}}\n")
    assert str(caught.value).startswith("line 2: ")
    assert message in str(caught.value)
    assert line in str(caught.value)
    assert str(caught.value).endswith("^")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text holds no"),
        ("grap @main {", "line 1: expected `graph @name {`"),
        ("graph @main mesh(dp) {\n  return\n}", "not a mesh"),
        ("graph @main {\n  return\n", "line 1: expected a `return` line and a `}`"),
        ("graph @main {\n  return\n}\nmore", "line 4: expected nothing after the main graph"),
        ("block @b {\n  return\n}\n", "the text holds no"),
    ],
)
def test_a_graph_that_is_not_whole_is_refused(text, message):
    """A text is blocks, then one graph."""
    with pytest.raises(IRError) as caught:
        parse_graph(text)
    assert message in str(caught.value)
