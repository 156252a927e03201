"""Marks say where batch, sequence and inner factors stand, all through a graph."""

from __future__ import annotations

import pytest

from autopar.ir.graph import Graph
from autopar.ir.text import parse_graph
from autopar.passes.positions import Positions, instantiate_rules, positions

FLAT = """
graph @flat {
  %x: f64[4,6,8] = input() {name="x"}
  %w: f64[36,8] = param() {fqn="w"}
  %f: f64[24,8] = aten.reshape.default(%x) {shape=(24, 8)}
  %y: f64[24,36] = aten.linear.default(%f, %w) {}
  %q: f64[24,12], %k: f64[24,12], %v: f64[24,12] = aten.split_with_sizes.default(%y) {dim=1, split_sizes=(12, 12, 12)}
  %h: f64[4,6,3,4] = aten.reshape.default(%q) {shape=(4, 6, 3, 4)}
  return %h, %k, %v
}
"""


def found(text: str, **inputs: tuple[int | None, int | None]) -> tuple[Graph, Positions]:
    graph = parse_graph(text)
    return graph, positions(graph, instantiate_rules(graph), inputs)


def test_flattened_batch_and_sequence_stay_apart() -> None:
    """[b, s] → [b · s] keeps the batch in the major part and the sequence in the minor one."""
    _, marks = found(FLAT, x=(0, 1))
    assert set(marks.marks["flat", "f"][0]) == {("batch", 1, 4), ("sequence", 4, 6)}
    assert set(marks.marks["flat", "y"][0]) == {("batch", 1, 4), ("sequence", 4, 6)}


def test_flattened_dims_part_again_in_a_later_view() -> None:
    """[b · s] → [b, s] finds the batch and the sequence where they were."""
    _, marks = found(FLAT, x=(0, 1))
    assert marks.marks["flat", "h"][:2] == ((("batch", 1, 4),), (("sequence", 1, 6),))


def test_a_fused_weight_learns_that_its_output_is_three_projections() -> None:
    """The split's inner factor travels back through the product to the weight's dim, as a place to cut at stride 3."""
    _, marks = found(FLAT, x=(0, 1))
    cuts = [mark for mark in marks.marks["flat", "w"][0] if mark[0] == "cut"]
    assert ("cut", 3, 12) in cuts
    assert marks.marks["flat", "w"][1] == ()


def test_weights_carry_neither_batch_nor_sequence() -> None:
    """What no input's batch reaches is not marked."""
    _, marks = found(FLAT, x=(0, 1))
    assert not marks.has("flat", "w", "batch") and not marks.has("flat", "w", "sequence")
    assert marks.has("flat", "y", "batch") and marks.has("flat", "y", "sequence")


@pytest.mark.parametrize(
    ("axis", "size", "offered"),
    [
        ("dp", 2, (1,)),  # the batch, at the front
        ("mb", 4, (1,)),
        ("cp", 3, (4,)),  # the sequence, behind the batch of 4
        ("tp", 2, (4,)),  # never the batch
        ("x", 2, (1, 4)),  # a free axis: either
        ("dp", 3, ()),  # the batch of 4 does not divide
        ("cp", 4, ()),
        ("x", 1, ()),
    ],
)
def test_axis_names_bind(axis: str, size: int, offered: tuple[int, ...]) -> None:
    """dp and mb take the batch only, cp the sequence only, tp never the batch; other names are free."""
    _, marks = found(FLAT, x=(0, 1))
    assert marks.offered(("flat", "y"), "*b0", 24, axis, size) == offered


def test_data_axes_are_not_offered_on_weights() -> None:
    """dp and cp never own the output features of a product; tp and free axes may, also inside the fused part."""
    _, marks = found(FLAT, x=(0, 1))
    assert marks.offered(("flat", "y"), "n", 36, "dp", 2) == ()
    assert marks.offered(("flat", "y"), "n", 36, "cp", 2) == ()
    assert marks.offered(("flat", "y"), "n", 36, "tp", 2) == (1, 3)
    assert marks.offered(("flat", "y"), "k", 8, "x", 4) == (1,)


def test_a_batch_of_one_is_no_batch() -> None:
    """There is nothing to split, so nothing is marked."""
    text = """
    graph @one {
      %x: f64[1,8] = input() {name="x"}
      %y: f64[1,8] = aten.relu.default(%x) {}
      return %y
    }
    """
    _, marks = found(text, x=(0, 1))
    assert marks.marks["one", "y"] == ((), (("sequence", 1, 8),))


def test_inputs_without_batch_are_free_of_it() -> None:
    """A position id of shape [s] has a sequence only; adding it to [b, s] does not give it a batch."""
    text = """
    graph @add {
      %x: f64[4,8] = input() {name="x"}
      %p: f64[8] = input() {name="p"}
      %y: f64[4,8] = aten.add.Tensor(%x, %p) {}
      return %y
    }
    """
    _, marks = found(text, x=(0, 1), p=(None, 0))
    assert marks.marks["add", "p"] == ((("sequence", 1, 8),),)
    assert marks.offered(("add", "y"), "*b0", 4, "dp", 2) == (1,)


def test_marks_enter_and_leave_blocks() -> None:
    """A block's inside knows the batch of what is carried through it, and so does what follows."""
    text = """
    block @layer {
      %a: f64[24,8] = input() {name="a"}
      %w: f64[8,8] = param() {slot=0}
      %b: f64[24,8] = aten.linear.default(%a, %w) {}
      return %b
    }
    graph @main {
      %x: f64[4,6,8] = input() {name="x"}
      %f: f64[24,8] = aten.reshape.default(%x) {shape=(24, 8)}
      %y: f64[24,8] = call(%f) {block="layer", carried=1, count=2, params=(("w0",), ("w1",))}
      return %y
    }
    """
    _, marks = found(text, x=(0, 1))
    expected = (("batch", 1, 4), ("sequence", 4, 6))
    assert marks.marks["layer", "b"][0] == marks.marks["layer", "a"][0] == marks.marks["main", "y"][0] == expected


def test_labels_and_logits_share_their_rows() -> None:
    """The loss sees the batch through the targets too, so that its sum may be Partial on dp."""
    text = """
    graph @loss {
      %x: f64[4,6,8] = input() {name="x"}
      %t: i64[4,6] = input() {name="t"}
      %l: f64[] = autopar.cross_entropy(%x, %t) {ignore_index=-100}
      return %l
    }
    """
    _, marks = found(text, x=(0, 1), t=(0, 1))
    assert marks.offered(("loss", "l"), "*b0", 4, "dp", 2) == (1,)
    assert marks.offered(("loss", "l"), "*b1", 6, "cp", 3) == (1,)
    assert marks.offered(("loss", "l"), "*b0", 4, "tp", 2) == ()


HEAD = """
graph @head {
  %x: f64[4,8] = input() {name="x"}
  %w: f64[8,8] = param() {fqn="w"}
  %c: f64[36,8] = param() {fqn="c"}
  %f: f64[4,8] = aten.linear.default(%x, %w) {}
  %y: f64[4,36] = aten.linear.default(%f, %c) {}
  %z: f64[4,36] = aten.relu.default(%y) {}
  %o: f64[4,8] = aten.relu.default(%f) {}
  return %z, %o
}
"""


def test_a_head_with_more_parameters_than_data_is_bound_by_no_name() -> None:
    """And so is what follows it; what reads an input has no gradient to send back, and what reads much is bound."""
    assert found(HEAD, x=(0, None))[1].unbound == {("head", "y"), ("head", "z")}
    assert not found(HEAD.replace("f64[4,", "f64[400,"), x=(0, None))[1].unbound
