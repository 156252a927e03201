"""Each invariant of a graph, broken once."""

from dataclasses import replace

import pytest
from hypothesis import given

from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node, Value
from autopar.ir.text import parse_graph
from autopar.ir.types import TensorType
from autopar.ir.verify import verify
from tests.ir.graphs import graphs

GOOD = """\
block @block0 {
  %0: f32[4] = input() {name="in0"}
  %1: f32[8] = input() {name="in1"}
  %2: f32[4,4] = param() {slot=0}
  %3: f32[4] = buffer() {slot=1}
  %4: f32[4] = aten.linear.default(%0, %2, %3, %1) {}
  return %4
}
graph @main mesh(dp=2) {
  %x: f32[4]{dp:S(0)} = input() {name="x"}
  %s: f32[8] = input() {name="s"}
  %w: f32[4] = param() {fqn="w"}
  %y: f32[4] = aten.add.Tensor(%x, %w) {alpha=1, beta=none}
  %z: f32[4] = call(%y, %s) {block="block0", carried=1, count=2, params=(("a", "b"), ("c", "d"))}
  return %z
}
"""


@given(graphs())
def test_graphs_as_they_should_be_pass(graph):
    """Nothing that the text can say and that fits together is refused."""
    verify(graph)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("add.Tensor(%x, %w)", "add.Tensor(%x, %z)", "operand %z is not defined before this node"),
        ("add.Tensor(%x, %w)", "add.Tensor(%x, [%w, %q])", "operand %q is not defined before this node"),
        ("%y: f32[4] =", "%x: f32[4] =", "%x is defined twice"),
        ("%y: f32[4] =", "%y: f32[4], %y: f32[4] =", "%y is defined twice"),
        ("return %z", "return %q", "output %q is not defined"),
        ("return %4", "return %x", "@block0: output %x is not defined"),
        ("alpha=1, beta=none", "beta=none, alpha=1", "attributes are sorted and named once, not beta, alpha"),
        ("alpha=1, beta=none", "alpha=1, alpha=1", "attributes are sorted and named once"),
        ("%x: f32[4]{dp:S(0)}", "%x: f32[1]{dp:S(0)}", "the layout of %x: axis dp of size 2 at stride 1"),
        ("%x: f32[4]{dp:S(0)}", "%x: f32[4]{dp:S(1)}", "the layout of %x: no dim 1"),
        ('fqn="w"', 'name="w"', 'param needs fqn="…"'),
        ("param() {fqn", "param(%x) {fqn", "param has one result and no operand"),
        ("{slot=1}", "{slot=2}", "slot=1 is next"),
        ("{slot=0}", '{fqn="w"}', "param of a block needs slot=0, 1, …"),
        ('block="block0"', 'block="block1"', "no block @block1; there are: block0"),
        (
            "call(%y, %s)",
            "call(%y)",
            "operands of the call and inputs of @block0 differ: f32[4] and f32[4], f32[8]",
        ),
        ("call(%y, %s)", "call(%s, %y)", "operands of the call and inputs of @block0 differ"),
        ("call(%y, %s)", "call(%y, [%s])", "operands of a call are values"),
        (
            "%z: f32[4] =",
            "%z: f32[8] =",
            "results of the call and outputs of @block0 differ: f32[8] and f32[4]",
        ),
        ("%z: f32[4] =", "%z: f32[4], %u: f32[4] =", "@block0 returns 1 and the call 2 values"),
        ("carried=1", "carried=2", "carried=2, but @block0 returns 1"),
        ("return %4", "return %1", "results of the call and outputs of @block0 differ: f32[4] and f32[8]"),
        ("count=2", "count=3", "params names 2 calls, count=3"),
        ("count=2", "count=none", "call needs count"),
        ('("c", "d")', '("c",)', "params of call 1 do not fill the 2 slots of @block0"),
        ('("c", "d")', '("c", 1)', "params of call 1 do not fill the 2 slots of @block0"),
        ('("c", "d")', '("c", "w")', '"w" already stands in the graph'),
        ('("c", "d")', '("c", "a")', '"a" already stands in the graph'),
        ("graph @main", "block @block0 {\n  return\n}\ngraph @main", "two blocks have the same name"),
    ],
)
def test_a_broken_invariant_is_told_with_the_node(old, new, message):
    """The pass, the graph, the node and what is wrong with it."""
    verify(parse_graph(GOOD), after="fold")
    assert GOOD.count(old) == 1
    with pytest.raises(IRError) as caught:
        verify(parse_graph(GOOD.replace(old, new)), after="fold")
    assert message in str(caught.value)
    assert str(caught.value).startswith("after fold: @")


def test_what_is_carried_keeps_its_type():
    """It enters the next call as it left the last."""
    changed = GOOD.replace("return %4", "return %1").replace("%z: f32[4] =", "%z: f32[8] =")
    with pytest.raises(IRError, match=r"carried inputs and outputs of @block0 differ: f32\[4\] and f32\[8\]"):
        verify(parse_graph(changed))


def test_the_message_stands_under_the_node():
    """As a compiler shows it."""
    with pytest.raises(IRError) as caught:
        verify(parse_graph("graph @main {\n  %y: f32[] = aten.neg.default(%x) {}\n  return %y\n}\n"))
    assert str(caught.value).splitlines() == [
        "@main: a broken node",
        "  %y: f32[] = aten.neg.default(%x) {}",
        "  ^ operand %x is not defined before this node",
    ]


@pytest.mark.parametrize("value", [[1], {"a": 1}, (1, b"x"), TensorType("f32", ())])
def test_an_attribute_is_plain_data(value):
    """Only what the text can say."""
    result = Value("x", TensorType("f32", ()))
    node = Node(results=(result,), target="aten.full.default", attrs=(("v", value),))
    with pytest.raises(IRError, match="attribute v holds"):
        verify(Graph(name="main", nodes=(node,), outputs=("x",)))


def test_a_layout_is_of_the_mesh_of_its_graph():
    """A layout of another mesh would be read for other axes."""
    graph = parse_graph(GOOD)
    with pytest.raises(IRError, match="the layout of %x is of mesh"):
        verify(replace(graph, mesh=None))


def test_blocks_hold_no_blocks():
    """One level: a block is what a call repeats."""
    graph = parse_graph(GOOD)
    inner = replace(graph.blocks[0], blocks=(graph.blocks[0],))
    with pytest.raises(IRError, match="blocks hold no blocks"):
        verify(replace(graph, blocks=(inner,)))


ASSIGNING = """\
graph @main {
  %b: f32[4] = buffer() {fqn="b"}
  %c: f32[2] = buffer() {fqn="c"}
  %w: f32[4] = param() {fqn="w"}
  %n: f32[4] = aten.add.Tensor(%b) {other=1}
  %y: f32[4] = autopar.assign(%w, [%b], [%n]) {}
  return %y
}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[%b], [%n]", "[%n], [%b]", "%n is no buffer as it is stored: only that can be written"),
        ("[%b], [%n]", "[%w], [%n]", "%w is no buffer as it is stored"),
        ("[%b], [%n]", "[%b, %b], [%n, %n]", "%b is written twice"),
        ("[%b], [%n]", "[%c], [%n]", r"buffers and their new values differ: f32\[2\] and f32\[4\]"),
        ("[%b], [%n]", "%b, %n", "has a value, a list of buffers and a list of new values"),
    ],
)
def test_an_assign_writes_each_buffer_once_with_its_own_kind(old, new, message):
    verify(parse_graph(ASSIGNING))
    with pytest.raises(IRError, match=message):
        verify(parse_graph(ASSIGNING.replace(old, new)))
