"""Lowered programs, word for word; each is also run and compared with the whole computation."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import pytest
import torch

from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from autopar.ir.text import parse_graph, print_graph
from autopar.ir.verify import verify
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.lowered import all_graphs, collectives, lowered, model_of
from tests.passes.graphs import ATTENTION, FUSED, HEADS, MLP, NORM, QKV, TIED

DP, TP, CP = Mesh((("dp", 2),)), Mesh((("tp", 2),)), Mesh((("cp", 2),))
Choices = Mapping[str, Mapping[str, str]]
BATCH = {"dp": "*b0"}
COLUMNS = {name: {"tp": "n"} for name in "qkv"} | {name: {"tp": "*b2"} for name in "ab"}
KEPT = {"wq": "tp:S(0)", "wk": "tp:S(0)", "wv": "tp:S(0)"}


def lower_text(
    text: str, mesh: Mesh, choices: Choices, layouts: Mapping[str, str] | None = None, *, microbatches: int = 1
) -> Program:
    """Lower, verify, and check the numbers."""
    graph = parse_graph(text)
    model = model_of(graph, {str(n.attr("name")): (0, 1) for n in graph.sources("input")})
    program = lowered(model, mesh, choices, layouts, microbatches=microbatches)
    for part in all_graphs(program):
        if part not in program.graph.blocks:
            verify(part, after="lower")
    _check(graph, program)
    return program


def _check(graph: Graph, program: Program) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, params = {}, {}
    for node in (*graph.sources("input"), *graph.sources("param")):
        shape = node.result.type.shape
        if node.target == "input":
            drawn = torch.randint(0, 16, shape, generator=generator)
            inputs[str(node.attr("name"))] = drawn if node.result.type.dtype == "i64" else drawn.double()
        else:
            params[str(node.attr("fqn"))] = torch.randn(shape, generator=generator, dtype=torch.float64)
    whole = lowered(model_of(graph), Mesh((("one", 1),)), {})
    expected = simulate(whole, inputs, params)
    found = simulate(program, inputs, params)
    assert found.loss is not None and expected.loss is not None
    compare({"loss": found.loss}, {"loss": expected.loss}, tol=1e-12, what="loss")
    compare(found.gradients, expected.gradients, tol=1e-12, what="gradients")


def body(program: Program) -> str:
    """The nodes of the main graph, sources left out."""
    lines = print_graph(program.graph).split("\n")[1:-3]
    return "\n".join(line.strip() for line in lines if " = param(" not in line and " = input(" not in line)


def expected(text: str) -> str:
    return textwrap.dedent(text).strip()


def test_data_parallelism_is_nothing_but_r_star_on_the_weights() -> None:
    """One reduction a weight, the runtime's, one for the loss, and no other conversion."""
    program = lower_text(MLP, DP, dict.fromkeys("hryzs", BATCH) | {"l": {"dp": "d0"}}, {"x": "dp:S(0)"})
    assert body(program) == expected("""
        %a.dp: f64[24,12]{dp:R*} = comm.identity(%a) {axis="dp", backward="all_reduce", owner="runtime"}
        %b.dp: f64[12,24]{dp:R*} = comm.identity(%b) {axis="dp", backward="all_reduce", owner="runtime"}
        %c.dp: f64[12]{dp:R*} = comm.identity(%c) {axis="dp", backward="all_reduce", owner="runtime"}
        %h: f64[8,24]{dp:S(0)} = aten.linear.default(%x, %a.dp) {}
        %r: f64[8,24]{dp:S(0)} = aten.relu.default(%h) {}
        %y: f64[8,12]{dp:S(0)} = aten.linear.default(%r, %b.dp) {}
        %z: f64[8,12]{dp:S(0)} = aten.add.Tensor(%y, %c.dp) {}
        %s: f64[8,12]{dp:S(0)} = aten.tanh.default(%z) {}
        %l: f64[]{dp:P(sum)} = aten.sum.default(%s) {}
        %l.1: f64[]{dp:R} = comm.all_reduce(%l) {axis="dp", backward="none"}
    """)
    assert program.data_axes == ("dp",)
    assert all(parameter.runtime_axes == ("dp",) for parameter in program.parameters)


def test_megatron_pair_has_one_all_reduce() -> None:
    """Column, then row: nothing in between; the bias enters the sum on one device."""
    choices = {"h": {"tp": "n"}, "r": {"tp": "*b1"}, "y": {"tp": "k"}, "z": {"tp": "P0"}}
    program = lower_text(MLP, TP, choices, {"a": "tp:S(0)", "b": "tp:S(1)"})
    assert body(program) == expected("""
        %h: f64[8,24]{tp:S(1)} = aten.linear.default(%x, %a) {}
        %r: f64[8,24]{tp:S(1)} = aten.relu.default(%h) {}
        %y: f64[8,12]{tp:P(sum)} = aten.linear.default(%r, %b) {}
        %c.1: f64[12]{tp:P(sum)} = comm.mask(%c) {axis="tp", backward="none"}
        %z: f64[8,12]{tp:P(sum)} = aten.add.Tensor(%y, %c.1) {}
        %z.2: f64[8,12]{tp:R} = comm.all_reduce(%z) {axis="tp", backward="none"}
        %s: f64[8,12]{tp:R} = aten.tanh.default(%z.2) {}
        %l: f64[]{tp:R} = aten.sum.default(%s) {}
    """)
    assert not any(parameter.runtime_axes for parameter in program.parameters)


def test_bias_added_after_the_all_reduce_needs_nothing() -> None:
    """On the whole sum every device adds the same bias, and its gradient is whole already."""
    choices = {"h": {"tp": "n"}, "r": {"tp": "*b1"}, "y": {"tp": "k"}}
    program = lower_text(MLP, TP, choices, {"a": "tp:S(0)", "b": "tp:S(1)"})
    assert collectives(program, "tp") == ["all_reduce"] and collectives(program, "tp", "backward") == []
    assert "%z: f64[8,12]{tp:R} = aten.add.Tensor(%y.1, %c)" in body(program)


def test_sequence_parallel_pair_scatters_where_it_would_reduce() -> None:
    """The row product's sum goes straight to shards: reduce_scatter, and all_gather on the way back."""
    choices = {
        "h": {"tp": "n"},
        "r": {"tp": "*b1"},
        "y": {"tp": "k"},
        "z": {"tp": "*b0"},
        "s": {"tp": "*b0"},
        "l": {"tp": "d0"},
    }
    program = lower_text(MLP, TP, choices, {"a": "tp:S(0)", "b": "tp:S(1)"})
    assert collectives(program, "tp") == ["reduce_scatter", "all_reduce"]
    assert collectives(program, "tp", "backward") == ["all_gather", "all_reduce"]  # the second for the bias
    assert '%c.2: f64[12]{tp:R*} = comm.identity(%c) {axis="tp", backward="all_reduce", owner="step"}' in body(program)


def test_three_projections_share_one_all_reduce() -> None:
    """P → R serves what needs it whole, R → R* what returns part of a gradient: one collective each way."""
    program = lower_text(QKV, TP, {"h": {"tp": "k"}, **COLUMNS}, {"e": "tp:S(1)", **KEPT})
    assert body(program) == expected("""
        %x.1: f64[2,4,8]{tp:S(2)} = comm.slice(%x) {axis="tp", backward="none", dim=2, outer=1}
        %h: f64[2,4,8]{tp:P(sum)} = aten.linear.default(%x.1, %e) {}
        %h.2: f64[2,4,8]{tp:R} = comm.all_reduce(%h) {axis="tp", backward="none"}
        %h.3: f64[2,4,8]{tp:R*} = comm.identity(%h.2) {axis="tp", backward="all_reduce"}
        %q: f64[2,4,8]{tp:S(2)} = aten.linear.default(%h.3, %wq) {}
        %k: f64[2,4,8]{tp:S(2)} = aten.linear.default(%h.3, %wk) {}
        %v: f64[2,4,8]{tp:S(2)} = aten.linear.default(%h.3, %wv) {}
        %a: f64[2,4,8]{tp:S(2)} = aten.mul.Tensor(%q, %k) {}
        %b: f64[2,4,8]{tp:S(2)} = aten.mul.Tensor(%a, %v) {}
        %r: f64[2,4,8]{tp:R} = aten.relu.default(%h.2) {}
        %b.4: f64[2,4,8]{tp:R} = comm.all_gather(%b) {axis="tp", backward="slice", dim=2, outer=1}
        %s: f64[2,4,8]{tp:R} = aten.mul.Tensor(%b.4, %r) {}
        %l: f64[]{tp:R} = aten.sum.default(%s) {}
    """)


def test_three_projections_share_one_all_gather() -> None:
    """From shards of the sequence: one all_gather forward, one reduce_scatter backward."""
    rows = {"tp": "*b1"}
    choices = {"h": rows, **COLUMNS, "r": rows, "s": rows, "l": {"tp": "d1"}}
    program = lower_text(QKV, TP, choices, KEPT)
    lines = body(program).split("\n")
    assert sum("comm.all_gather(%h)" in line for line in lines) == 1
    assert (
        '%h.3: f64[2,4,8]{tp:R*} = comm.all_gather(%h) {axis="tp", backward="reduce_scatter", dim=1, outer=1}' in lines
    )
    assert collectives(program, "tp") == ["all_gather", "all_to_all", "all_reduce"]
    assert collectives(program, "tp", "backward") == ["all_reduce", "reduce_scatter", "all_to_all"]


def test_norm_over_part_of_the_sequence_reduces_its_weights_in_the_graph() -> None:
    """On tp the graph owns the sum of the norm's gradients; on cp the runtime does."""
    program = lower_text(NORM, TP, {"y": {"tp": "d1"}, "l": {"tp": "d1"}})
    assert body(program) == expected("""
        %x.1: f64[2,4,8]{tp:S(1)} = comm.slice(%x) {axis="tp", backward="none", dim=1, outer=1}
        %w.2: f64[8]{tp:R*} = comm.identity(%w) {axis="tp", backward="all_reduce", owner="step"}
        %b.3: f64[8]{tp:R*} = comm.identity(%b) {axis="tp", backward="all_reduce", owner="step"}
        %y: f64[2,4,8]{tp:S(1)} = aten.layer_norm.default(%x.1, %w.2, %b.3) {normalized_shape=(8,)}
        %l: f64[]{tp:P(sum)} = aten.sum.default(%y) {}
        %l.4: f64[]{tp:R} = comm.all_reduce(%l) {axis="tp", backward="none"}
    """)
    program = lower_text(NORM, CP, {"y": {"cp": "d1"}, "l": {"cp": "d1"}})
    assert [parameter.runtime_axes for parameter in program.parameters] == [("cp",), ("cp",)]
    assert collectives(program, "cp", "backward") == []


def test_vocabulary_parallel_embedding_and_loss_never_gather() -> None:
    """One tied weight in one placement; three numbers a row are reduced, and no collective sees the logits."""
    choices = {"h": {"tp": "v"}, "y": {"tp": "n"}, "m": {"tp": "v"}, "s": {"tp": "v"}}
    program = lower_text(TIED, TP, choices, {"e": "tp:S(0)"})
    assert body(program) == expected("""
        %h: f64[4,3,8]{tp:P(sum)} = autopar.embedding_shard(%e, %i) {start=(("tp", 8),)}
        %h.1: f64[4,3,8]{tp:R*} = comm.all_reduce(%h) {axis="tp", backward="all_reduce"}
        %y: f64[4,3,16]{tp:S(2)} = aten.linear.default(%h.1, %e) {}
        %m: f64[4,3]{tp:P(max)} = autopar.row_max(%y) {}
        %m.2: f64[4,3]{tp:R} = comm.all_reduce(%m) {axis="tp", backward="none", reduce="max"}
        %s: f64[4,3,2]{tp:P(sum)} = autopar.cross_entropy_stats(%y, %t, %m.2) {ignore_index=-100, start=(("tp", 8),)}
        %s.3: f64[4,3,2]{tp:R} = comm.all_reduce(%s) {axis="tp", backward="none"}
        %u: f64[]{tp:R} = autopar.cross_entropy_from_stats(%s.3, %t) {ignore_index=-100}
        %c: f64[]{tp:R} = autopar.count_targets(%t) {dtype="f64", ignore_index=-100}
        %l: f64[]{tp:R} = aten.div.Tensor(%u, %c) {}
    """)


def test_denominator_of_the_loss_is_counted_before_the_microbatches() -> None:
    """What needs the whole batch stands in the prologue and enters the main graph as an input."""
    both = {"dp": "*b0", "mb": "*b0"}
    choices = dict.fromkeys(("h", "y", "m", "s", "u", "c"), both) | {"l": {"dp": "P0", "mb": "P0"}}
    program = lower_text(TIED, DP, choices, dict.fromkeys("it", "dp:S(0), mb:S(0)"), microbatches=2)
    assert program.prologue is not None
    assert print_graph(program.prologue).strip() == expected("""
        graph @prologue mesh(dp=2) {
          %t: i64[4,3]{dp:S(0)} = input() {name="t"}
          %c: f64[]{dp:P(sum)} = autopar.count_targets(%t) {dtype="f64", ignore_index=-100}
          %c.1.whole: f64[]{dp:R} = comm.all_reduce(%c) {axis="dp", backward="none"}
          return %c.1.whole
        }
    """)
    assert body(program) == expected("""
        %e.dp: f64[16,8]{dp:R*, mb:R} = comm.identity(%e) {axis="dp", backward="all_reduce", owner="runtime"}
        %e.mb: f64[16,8]{dp:R*, mb:R} = comm.identity(%e.dp) {axis="mb", backward="all_reduce", owner="runtime"}
        %h: f64[4,3,8]{dp:S(0), mb:S(0)} = aten.embedding.default(%e.mb, %i) {}
        %y: f64[4,3,16]{dp:S(0), mb:S(0)} = aten.linear.default(%h, %e.mb) {}
        %u: f64[]{dp:P(sum), mb:P(sum)} = autopar.cross_entropy(%y, %t) {ignore_index=-100}
        %l: f64[]{dp:P(sum), mb:P(sum)} = aten.div.Tensor(%u, %c.1.whole) {}
        %l.2: f64[]{dp:R, mb:P(sum)} = comm.all_reduce(%l) {axis="dp", backward="none"}
        %l.3: f64[]{dp:R, mb:R} = comm.all_reduce(%l.2) {axis="mb", backward="none"}
    """)
    assert '%c.1.whole: f64[]{dp:R, mb:R} = input() {name="c.1.whole"}' in print_graph(program.graph)


def test_one_value_may_enter_from_the_prologue_in_two_layouts() -> None:
    """A mask computed for the whole batch is used whole by one node and in parts by another."""
    text = """
    graph @twice {
      %x: f64[4,6] = input() {name="x"}
      %w: f64[6] = param() {fqn="w"}
      %c: f64[6] = aten.sum.dim_IntList(%x) {dim=(0,)}
      %a: f64[6] = aten.mul.Tensor(%w, %c) {}
      %b: f64[6] = aten.tanh.default(%c) {}
      %p: f64[4,6] = aten.mul.Tensor(%x, %a) {}
      %q: f64[4,6] = aten.mul.Tensor(%p, %b) {}
      %l: f64[] = aten.sum.default(%q) {}
      return %l
    }
    """
    choices = {
        "c": {"mb": "d0"}, "a": {"x": "*b0"}, "b": {}, "p": {"x": "*b1", "mb": "*b0"}, "q": {"x": "*b1", "mb": "*b0"},
        "l": {"x": "d1", "mb": "d0"},
    }  # fmt: skip
    program = lower_text(text, Mesh((("x", 2),)), choices, {"x": "mb:S(0)"}, microbatches=2)
    assert program.prologue is not None and len(program.prologue.outputs) == 2


def test_what_microbatches_and_the_whole_batch_need_runs_for_both() -> None:
    text = """
    graph @both {
      %x: f64[4,6] = input() {name="x"}
      %w: f64[6] = param() {fqn="w"}
      %t: f64[4,6] = aten.tanh.default(%x) {}
      %c: f64[6] = aten.sum.dim_IntList(%t) {dim=(0,)}
      %a: f64[6] = aten.mul.Tensor(%w, %c) {}
      %p: f64[4,6] = aten.mul.Tensor(%t, %a) {}
      %l: f64[] = aten.sum.default(%p) {}
      return %l
    }
    """
    part = {"x": "*b0", "mb": "*b0"}
    choices = {"t": part, "c": {"x": "d0", "mb": "d0"}, "a": {}, "p": part, "l": {"x": "d0", "mb": "d0"}}
    program = lower_text(text, Mesh((("x", 2),)), choices, {"x": "x:S(0), mb:S(0)"}, microbatches=2)
    assert program.prologue is not None
    early, late = ([node.target for node in graph.nodes] for graph in (program.prologue, program.graph))
    assert early == ["input", "aten.tanh.default", "aten.sum.dim_IntList", "comm.all_reduce"]
    assert "aten.tanh.default" in late and "aten.sum.dim_IntList" not in late


def test_other_outputs_do_not_change_how_the_loss_is_come_by() -> None:
    """They may want a value whole of which the loss needs a part."""
    text = """
    graph @two {
      %x: f64[4,6] = input() {name="x"}
      %w: f64[8,6] = param() {fqn="w"}
      %y: f64[4,8] = aten.linear.default(%x, %w) {}
      %s: f64[4,8] = aten.tanh.default(%y) {}
      %l: f64[] = aten.sum.default(%s) {}
      return %l, %y
    }
    """
    choices = {"y": {"tp": "k"}, "s": {"tp": "*b1"}, "l": {"tp": "d1"}}
    program = lower_text(text, TP, choices, {"x": "tp:S(1)", "w": "tp:S(1)"})
    alone = lower_text(text.replace("return %l, %y", "return %l"), TP, choices, {"x": "tp:S(1)", "w": "tp:S(1)"})
    assert collectives(alone, "tp") == ["reduce_scatter", "all_reduce"]
    assert [kind for kind in collectives(program, "tp") if kind == "reduce_scatter"] == ["reduce_scatter"]


def test_fused_qkv_is_stored_contiguous_and_exchanged_at_use() -> None:
    """A weight of three projections side by side: stored in one piece, all_to_all to each projection's part."""
    choices = {"y": {"tp": "n/3"}, "q": {"tp": "n"}, "a": {"tp": "*b2"}, "s": {"tp": "*b2"}, "l": {"tp": "d2"}}
    program = lower_text(FUSED, TP, choices, {"w": "tp:S(1)"})
    exchange, product, parts = body(program).split("\n")[:3]
    assert exchange == (
        "%w.1: f64[24,8]{tp:S(0)/3} = comm.all_to_all(%w) "
        '{axis="tp", backward="all_to_all", dim=1, dim_to=0, outer=1, outer_to=3}'
    )
    assert product == "%y: f64[2,4,24]{tp:S(2)/3} = aten.linear.default(%x, %w.1) {}"
    assert parts.startswith("%q: f64[2,4,8]{tp:S(2)}, %k: f64[2,4,8]{tp:S(2)}, %v: f64[2,4,8]{tp:S(2)} = ")
    assert parts.endswith("{dim=2, split_sizes=(4, 4, 4)}")


def test_fused_qkv_stored_by_rows_goes_through_the_whole_weight() -> None:
    """12 | 12 rows and 4 · 3 | 4 · 3 rows are not pieces of each other: gathered, then sliced."""
    choices = {"y": {"tp": "n/3"}, "q": {"tp": "n"}, "a": {"tp": "*b2"}, "s": {"tp": "*b2"}, "l": {"tp": "d2"}}
    program = lower_text(FUSED, TP, choices, {"w": "tp:S(0)"})
    assert collectives(program, "tp")[:1] == ["all_gather"]
    assert collectives(program, "tp", "backward")[:1] == ["all_gather"]


def test_causal_rows_of_attention_know_where_they_begin() -> None:
    """Each device has part of the queries and all keys; the keys' gradients are sums, the runtime's on cp."""
    mesh = Mesh((("cp", 2), ("tp", 2)))
    split = {"tp": "*b1", "cp": "*b2"}
    choices = {"y": {"tp": "g", "cp": "sq"}, "z": split, "l": {"tp": "d1", "cp": "d2"}}
    program = lower_text(ATTENTION, mesh, choices, dict.fromkeys("qkv", "tp:S(1)"))
    assert '%y: f64[2,8,4,2]{cp:S(2), tp:S(1)} = autopar.sdpa_rows(%q.1, %k.cp, %v.cp) {start=(("cp", 2),)}' in body(
        program
    )
    assert {p.fqn: p.runtime_axes for p in program.parameters} == {"q": (), "k": ("cp",), "v": ("cp",)}


def test_more_devices_than_key_heads_split_the_queries_of_each_head() -> None:
    """With 2 key heads on 4 devices each device takes one query of every group; keys are whole."""
    mesh = Mesh((("tp", 4),))
    program = lower_text(ATTENTION, mesh, {"y": {"tp": "h"}, "z": {"tp": "*b1/2"}, "l": {"tp": "d1/2"}})
    assert "%q.1: f64[2,8,4,2]{tp:S(1)/2} = comm.slice(%q)" in body(program)
    whole = '%k.2: f64[2,2,4,2]{tp:R*} = comm.identity(%k) {axis="tp", backward="all_reduce", owner="step"}'
    assert whole in body(program)


def test_sizes_of_views_are_local() -> None:
    """Reshape, permute and expand see what one device holds; owned factors pass through them."""
    mesh = Mesh((("x", 2), ("y", 3)))
    choices = {
        "h": {"x": "f2_0", "y": "f1_0"}, "p": {"x": "d2", "y": "d1"}, "f": {"x": "f0_1", "y": "f2_0"},
        "n": {"x": "f0_0/2", "y": "f1_0"}, "g": {"x": "d1/2", "y": "d2"}, "t": {"x": "*b1/2", "y": "*b2"},
        "l": {"x": "d1/2", "y": "d2"},
    }  # fmt: skip
    program = lower_text(HEADS, mesh, choices, {"x": "x:S(2), y:S(1)"})
    assert body(program).split("\n")[:5] == expected("""
        %h: f64[2,6,4,2]{x:S(2), y:S(1)} = aten.reshape.default(%x) {shape=(2, 2, 2, 2)}
        %p: f64[2,4,6,2]{x:S(1), y:S(2)} = aten.permute.default(%h) {dims=(0, 2, 1, 3)}
        %f: f64[8,12]{x:S(0)/2, y:S(1)} = aten.reshape.default(%p) {shape=(4, 4)}
        %n: f64[1,8,12]{x:S(1)/2, y:S(2)} = aten.reshape.default(%f) {shape=(1, 4, 4)}
        %g: f64[5,8,12]{x:S(1)/2, y:S(2)} = aten.expand.default(%n) {size=(5, 4, 4)}
    """).split("\n")  # fmt: skip


@pytest.mark.parametrize("mesh", [DP, TP], ids=str)
def test_nothing_chosen_is_the_same_program_on_every_device(mesh: Mesh) -> None:
    """Replicated work needs no conversion at all."""
    program = lower_text(QKV, mesh, {})
    assert "comm." not in body(program)
