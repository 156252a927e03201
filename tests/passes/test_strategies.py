"""A node's strategies are its rule's factors, and where each stands decides every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.ir.errors import IRError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.text import parse_graph
from autopar.passes.facts import facts
from autopar.passes.positions import flat_operands, instantiate_rules, positions
from autopar.passes.strategies import Choice, Strategy, hides, parse_choices, strategies, strategy
from tests.lowered import model_of

LINEAR = """
graph @g {
  %x: f64[8,12] = input() {name="x"}
  %w: f64[24,12] = param() {fqn="w"}
  %y: f64[8,24] = aten.linear.default(%x, %w) {}
  %z: f64[8,24] = aten.relu.default(%y) {}
  return %z
}
"""


def legal(
    text: str, name: str, mesh: Mesh, *, partial: tuple[str, ...] = (), **inputs: tuple[int | None, int | None]
) -> tuple[Strategy, ...]:
    graph = parse_graph(text)
    model = model_of(graph, inputs)
    marks = positions(graph, model.rules, inputs)
    key = (graph.name, name)
    sums = [frozenset(partial) for _ in flat_operands(graph.producers()[name])]
    return strategies(model.rules[key], marks, key, model.shapes[key], mesh, sums)


def table(found: tuple[Strategy, ...], mesh: Mesh) -> dict[str, str]:
    """Choices -> layouts, as text."""
    lines = {}
    for chosen in found:
        operands = ", ".join("none" if layout is None else layout.text() for layout in chosen.operands)
        results = ", ".join(layout.text() for layout in chosen.results)
        lines[" ".join(chosen.text(mesh).values())] = f"{operands} -> {results}".replace(f"{mesh.names[0]}:", "")
    return lines


def test_the_four_ways_to_split_a_product() -> None:
    """Columns, rows, batch or nothing; R* where the gradient comes in parts, and P where a factor is contracted."""
    graph = LINEAR.replace("input()", "param()").replace('name="x"', 'fqn="x"')
    assert table(legal(graph, "y", Mesh((("t", 2),))), Mesh((("t", 2),))) == {
        "*b0": "S(0), R* -> S(0)",
        "k": "S(1), S(1) -> P(sum)",
        "n": "R*, S(0) -> S(1)",
        "-": "R, R -> R",
    }


def test_no_star_without_a_gradient() -> None:
    """An input of the model needs no reduced gradient: R, not R*."""
    assert table(legal(LINEAR, "y", Mesh((("t", 2),)), x=(None, None)), Mesh((("t", 2),)))["n"] == "R, S(0) -> S(1)"


def test_dp_splits_the_batch_only_and_tp_all_else() -> None:
    mesh = Mesh((("dp", 2),))
    assert set(table(legal(LINEAR, "y", mesh, x=(0, None)), mesh)) == {"*b0"}
    mesh = Mesh((("tp", 2),))
    assert set(table(legal(LINEAR, "y", mesh, x=(0, None)), mesh)) == {"k", "n", "-"}


def test_what_only_sums_the_batch_up_may_be_done_by_all() -> None:
    """Gathering a small operand may be faster than adding up parts; a free axis may leave anything whole."""
    graph = LINEAR.replace("%z: f64[8,24] = aten.relu.default(%y) {}", "%z: f64[] = aten.sum.default(%y) {}")
    offered = {
        axis: {node: set(table(legal(graph, node, mesh, x=(0, None)), mesh)) for node in ("y", "z")}
        for axis in ("dp", "mix") for mesh in [Mesh(((axis, 2),))]
    }  # fmt: skip
    assert offered["dp"]["y"] == {"*b0"} and "-" in offered["mix"]["y"]
    assert "-" in offered["dp"]["z"] and len(offered["dp"]["z"]) == 2


def test_cp_splits_the_sequence_but_for_views_and_what_reads_it_whole() -> None:
    """Keys and values may be gathered before their heads are repeated, and attention done by all. With few axes all."""
    graph = """
graph @g {
  %x: f64[2,4,8,16] = input() {name="x"}
  %y: f64[2,4,8,16] = aten.relu.default(%x) {}
  %v: f64[2,8,4,16] = aten.permute.default(%y) {dims=(0, 2, 1, 3)}
  %a: f64[2,4,8,16] = aten.scaled_dot_product_attention.default(%y, %y, %y) {}
  return %a
}
"""
    offered = {
        (axes, node): {str(chosen.choices[0]) for chosen in legal(graph, node, Mesh(axes), x=(0, 2))}
        for axes in ((("cp", 2),), (("cp", 2), ("dp", 2), ("tp", 2))) for node in ("y", "v", "a")
    }  # fmt: skip
    for (axes, node), found in offered.items():
        free = node != "y" or len(axes) == 1
        assert ("-" in found) == free and len(found) == 1 + free


def test_sums_pass_where_they_may() -> None:
    """A Partial operand stops at a relu, and passes an addition that both sides enter as sums."""
    mesh = Mesh((("t", 2),))
    assert "P0" not in table(legal(LINEAR, "z", mesh, partial=("t",), x=(None, None)), mesh)
    text = """
    graph @g {
      %a: f64[8] = param() {fqn="a"}
      %b: f64[8] = param() {fqn="b"}
      %s: f64[8] = aten.add.Tensor(%a, %b) {}
      %p: f64[8] = aten.mul.Tensor(%a, %b) {}
      return %s, %p
    }
    """
    assert table(legal(text, "s", mesh, partial=("t",)), mesh)["P0"] == "P(sum), P(sum) -> P(sum)"
    product = table(legal(text, "p", mesh, partial=("t",)), mesh)
    assert product["P0"] == "P(sum), R* -> P(sum)" and product["P1"] == "R*, P(sum) -> P(sum)"
    assert "P0" not in table(legal(text, "s", mesh), mesh)  # nowhere is it Partial


def test_axes_of_one_factor_stack() -> None:
    """The first axis owns the major part; a third does not fit any more."""
    mesh = Mesh((("a", 2), ("b", 2), ("c", 3)))
    found = table(legal(LINEAR, "y", mesh, x=(None, None)), mesh)
    assert found["*b0 *b0 -"] == "S(0), b:S(0), c:R, R*, b:R*, c:R -> S(0), b:S(0), c:R"
    assert found["n n n"].endswith("-> S(1), b:S(1), c:S(1)")
    assert not any(key.startswith("*b0 *b0 *b0") for key in found)


def test_axes_of_one_factor_do_not_reach_into_the_factor_behind_it() -> None:
    """Two groups cannot be split four ways, although their channels could."""
    text = """
    graph @g {
      %x: f64[4,8,5] = param() {fqn="x"}
      %w: f64[8,4,3] = param() {fqn="w"}
      %y: f64[4,8,3] = aten.convolution.default(%x, %w) {stride=(1,), padding=(0,), dilation=(1,), transposed=false, output_padding=(0,), groups=2}
      return %y
    }
    """  # noqa: E501
    mesh = Mesh((("a", 2), ("b", 2)))
    found = {" ".join(chosen.text(mesh).values()) for chosen in legal(text, "y", mesh)}
    assert {"g -", "- g", "n g", "n n"} <= found
    assert "g g" not in found


def test_an_odd_extent_is_not_split() -> None:
    text = LINEAR.replace("24", "25")
    assert set(table(legal(text, "y", Mesh((("t", 2),)), x=(None, None)), Mesh((("t", 2),)))) == {"*b0", "k", "-"}


def test_a_minor_factor_waits_until_the_major_one_does_not_fit() -> None:
    """Heads come before the features inside a head; with too few heads the features are offered."""
    text = """
    graph @g {
      %x: f64[4,24] = param() {fqn="x"}
      %h: f64[4,3,8] = aten.reshape.default(%x) {shape=(4, 3, 8)}
      return %h
    }
    """
    assert set(table(legal(text, "h", Mesh((("t", 3),))), Mesh((("t", 3),)))) == {"f1_0", "-"}
    mesh = Mesh((("t", 2),))
    found = table(legal(text, "h", mesh), mesh)
    assert found["f1_1"] == "S(1)/3 -> S(2)"
    assert "f1_0" not in found


@pytest.mark.parametrize(("few", "many", "hidden"), [(2, 8, True), (4, 8, False), (2, 4, True), (2, 16, False)])
def test_few_devices_do_not_stand_for_more_where_a_major_factor_is_theirs_alone(
    few: int, many: int, *, hidden: bool
) -> None:
    """Two heads of eight features: 2 devices are offered the heads, 4 and 8 the features, 16 neither."""
    text = """
    graph @g {
      %x: f64[4,16] = param() {fqn="x"}
      %h: f64[4,2,8] = aten.reshape.default(%x) {shape=(4, 2, 8)}
      return %h
    }
    """
    graph = parse_graph(text)
    model = model_of(graph, {})
    marks, key = positions(graph, model.rules, {}), (graph.name, "h")
    assert hides(model.rules[key], marks, key, "t", few, many) == hidden
    assert not hides(model.rules[key], replace(marks, inner=True), key, "t", few, many)


def test_rows_of_attention_are_split_without_strides() -> None:
    """Causal attention over part of the rows needs a first row: a strided part is not offered."""
    text = """
    graph @g {
      %x: f64[2,2,4,2,3] = input() {name="x"}
      %q: f64[2,2,8,3] = aten.reshape.default(%x) {shape=(2, 2, 8, 3)}
      %y: f64[2,2,8,3] = aten.scaled_dot_product_attention.default(%q, %q, %q) {is_causal=true}
      return %y
    }
    """
    found = legal(text, "y", Mesh((("t", 2),)), x=(None, 3))
    graph = parse_graph(text)
    marks = positions(graph, instantiate_rules(graph), {"x": (None, 3)})
    assert marks.offered(("g", "y"), "sq", 8, "t", 2) == (1, 4)
    assert {str(chosen.choices[0]) for chosen in found} == {"b0", "g", "sq", "-"}


def test_time_is_not_a_choice() -> None:
    """What depends on the batch runs once a microbatch, all else is the same in each; and no star shows on mb."""
    mesh = Mesh((("tp", 2), ("mb", 2)))
    found = legal(LINEAR, "y", mesh, x=(0, None))
    assert {str(chosen.choices[1]) for chosen in found} == {"*b0"}
    assert all(chosen.operands[1] is not None and chosen.operands[1].text().endswith("mb:R") for chosen in found)
    still = legal(LINEAR, "y", mesh, x=(None, None))
    assert {str(chosen.choices[1]) for chosen in still} == {"-"}


def test_results_of_one_node_share_its_strategy() -> None:
    """A split into three projections takes one choice for all of them."""
    text = """
    graph @g {
      %x: f64[4,36] = param() {fqn="x"}
      %q: f64[4,12], %k: f64[4,12], %v: f64[4,12] = aten.split_with_sizes.default(%x) {dim=1, split_sizes=(12, 12, 12)}
      return %q, %k, %v
    }
    """
    mesh = Mesh((("t", 2),))
    assert table(legal(text, "q", mesh), mesh) == {
        "d0": "S(0) -> S(0), S(0), S(0)",
        "n": "S(1)/3 -> S(1), S(1), S(1)",
        "-": "R -> R, R, R",
    }


@pytest.mark.parametrize(
    "choice", [Choice(), Choice("n"), Choice("n", 3), Choice(partial=1), Choice("*b0", 4)], ids=str
)
def test_choices_read_back_from_their_text(choice: Choice) -> None:
    assert Choice.parse(str(choice)) == choice


def test_a_choice_for_an_axis_that_does_not_exist_is_refused() -> None:
    with pytest.raises(IRError, match="strategy names axis 'q', the mesh has t=2"):
        parse_choices({"q": "n"}, Mesh((("t", 2),)))


def test_gradients_flow_from_parameters_only() -> None:
    """Facts: integers, detached values and what depends on inputs alone carry no gradient."""
    text = """
    graph @g {
      %x: f64[4] = input() {name="x"}
      %w: f64[4] = param() {fqn="w"}
      %f: f64[4] = param() {fqn="f", trainable=false}
      %a: f64[4] = aten.mul.Tensor(%x, %f) {}
      %b: f64[4] = aten.mul.Tensor(%a, %w) {}
      %c: bool[4] = aten.gt.Scalar(%b) {other=0}
      %d: f64[4] = autopar.detach(%b) {}
      return %b, %c, %d
    }
    """
    known = facts(graph := parse_graph(text))
    assert isinstance(graph, Graph)
    assert {name for (_, name), fact in known.items() if fact.grad} == {"w", "b"}
    assert {name for (_, name), fact in known.items() if fact.pure} == {"x"}


HEAD = """
graph @g {
  %x: f64[B,12] = input() {name="x"}
  %v: f64[12,12] = param() {fqn="v"}
  %w: f64[24,12] = param() {fqn="w"}
  %u: f64[B,12] = aten.linear.default(%x, %v) {}
  %y: f64[B,24] = aten.linear.default(%u, %w) {}
  return %y
}
"""


@pytest.mark.parametrize(("batch", "choices"), [("8", ["*b0", "-"]), ("80", ["*b0"])])
def test_dp_may_leave_a_head_alone_whose_parameters_outweigh_what_it_reads(batch: str, choices: list[str]) -> None:
    """All then read the batch whole and no gradient is summed; larger batches are split."""
    mesh = Mesh((("dp", 2),))
    assert list(table(legal(HEAD.replace("B", batch), "y", mesh, x=(0, None)), mesh)) == choices


@pytest.mark.parametrize("mesh", [Mesh((("a", 2), ("b", 2))), Mesh((("dp", 2), ("cp", 2), ("tp", 3)))], ids=str)
@pytest.mark.parametrize("name", ["y", "z"])
def test_axes_apart_place_what_they_place_together(mesh: Mesh, name: str) -> None:
    """What is known of each axis alone gives the layouts that follow from all choices at once."""
    graph = parse_graph(LINEAR)
    model = model_of(graph, {"x": (0, None)})
    found = legal(LINEAR, name, mesh, partial=mesh.names, x=(0, None))
    assert len({chosen.choices for chosen in found}) == len(found) > 1
    for chosen in found:
        assert strategy(model.rules["g", name], chosen.choices, model.shapes["g", name], mesh) == chosen
