"""What folds, into what, and that nothing is lost."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.text import print_graph
from autopar.ir.verify import verify
from autopar.passes.fold import fold
from autopar.passes.order import canonical_form
from autopar.passes.unfold import unfold
from tests.fold.build import VECTOR, Builder, calls, disguised
from tests.fold.random_chains import random_chain

MLP = """\
block @block0 {
  %0: f32[4] = input() {name="in0"}
  %1: f32[4,4] = param() {slot=0}
  %2: f32[4,4] = param() {slot=1}
  %3: f32[4] = aten.linear.default(%0, %1) {}
  %4: f32[4] = aten.relu.default(%3) {}
  %5: f32[4] = aten.linear.default(%4, %2) {}
  %6: f32[4] = aten.dropout.default(%5) {p=0.1, train=true}
  %7: f32[4] = aten.add.Tensor(%0, %6) {}
  return %7
}
graph @main {
  %0: f32[4] = input() {name="x"}
  %1: f32[4,4] = param() {fqn="p1"}
  %2: f32[4] = aten.linear.default(%0, %1) {}
  %3: f32[4] = call(%2) {block="block0", carried=1, count=4, \
params=(("p2", "p3"), ("p4", "p5"), ("p6", "p7"), ("p8", "p9"))}
  return %3
}
"""


def mlp(layers: int) -> Builder:
    build = Builder()
    x = build.linear(build.input())
    for _ in range(layers):
        x = build.residual(x)
    return build


def folded(build: Builder, *outputs: str):
    """The fold of the graph that returns ``outputs`` or else the last value; the law holds for it."""
    graph = build.graph(*outputs)
    result = fold(graph)
    verify(graph)
    verify(result, after="fold")
    assert canonical_form(unfold(result)) == canonical_form(graph)
    return result


def test_four_layers_are_one_block_and_one_call():
    """The text of the whole."""
    assert print_graph(folded(mlp(4))) == MLP


@pytest.mark.parametrize("layers", [2, 3, 7])
def test_a_block_is_the_same_for_any_count(layers):
    """From two layers on."""
    assert folded(mlp(layers)).blocks == fold(mlp(4).graph()).blocks
    assert calls(folded(mlp(layers))) == [(layers, 1, 5)]


def test_one_layer_does_not_fold():
    """Nothing is repeated, and the result is the canonical form."""
    graph = mlp(1).graph()
    assert fold(graph) == canonical_form(graph)


def test_fewer_than_min_count_do_not_fold():
    """``min_count`` is the least number of instances."""
    graph = mlp(3).graph()
    assert calls(fold(graph, min_count=4)) == []
    assert calls(fold(graph, min_count=3)) == [(3, 1, 5)]


def test_alternating_layers_fold_in_pairs():
    """A B A B is a block (A, B)."""
    build = Builder()
    x = build.input()
    for _ in range(3):
        x = build.op("aten.tanh.default", build.residual(x))
        x = build.op("aten.mul.Tensor", x, build.linear(x))
    assert calls(folded(build)) == [(3, 1, 8)]


def test_kinds_in_a_row_fold_separately():
    """Three A, then three B."""
    build = Builder()
    x = build.input()
    for _ in range(3):
        x = build.residual(x)
    for _ in range(3):
        x = build.op("aten.mul.Tensor", x, build.linear(x))
    result = folded(build)
    assert calls(result) == [(3, 1, 5), (3, 1, 2)]
    assert [block.name for block in result.blocks] == ["block0", "block1"]


def test_layers_that_differ_in_a_shared_value_alternate():
    """Operations are alike in all layers; every third reads another mask."""
    build = Builder()
    x = build.input()
    near, far = (build.op(f"aten.{name}.default", build.input(name)) for name in ("cos", "sin"))
    for at in range(12):
        mask = far if at % 3 == 2 else near
        x = build.op("aten.add.Tensor", x, build.linear(build.op("aten.mul.Tensor", x, mask)))
    assert calls(folded(build)) == [(4, 1, 9)]


def test_a_shared_value_is_an_operand_of_the_call():
    """Computed once, ahead of all layers, although the first layer could hold it."""
    build = Builder()
    x = build.op("aten.tanh.default", build.input())
    bias = build.linear(build.input("positions"))
    for _ in range(3):
        x = build.residual(build.op("aten.add.Tensor", bias, x))
    (call,) = folded(build).sources("call")
    assert len(call.operands) == 2


def test_a_tied_weight_is_shared():
    """One module looped over: no slot, the parameter stays in the main graph."""
    build = Builder()
    x, weight = build.input(), build.param()
    for _ in range(4):
        x = build.op("aten.add.Tensor", x, build.op("aten.relu.default", build.linear(x, weight)))
    result = folded(build)
    assert calls(result) == [(4, 1, 3)]
    assert result.sources("call")[0].attr("params") == ((), (), (), ())
    assert len(result.sources("param")) == 1


def test_a_weight_tied_inside_the_instance_fills_one_slot():
    """Used twice in its own layer."""
    build = Builder()
    x = build.input()
    for _ in range(3):
        weight = build.param()
        x = build.op(
            "aten.add.Tensor", x, build.linear(build.op("aten.relu.default", build.linear(x, weight)), weight)
        )
    result = folded(build)
    assert calls(result) == [(3, 1, 4)]
    assert len(result.blocks[0].sources("param")) == 1


def test_attributes_of_parameters_and_buffers_are_kept():
    """All but the name."""
    build = Builder()
    x = build.input()
    for _ in range(2):
        x = build.op("aten.add.Tensor", x, build.linear(x, build.param(trainable=False)))
        x = build.op("aten.mul.Tensor", x, build.param(VECTOR, target="buffer"))
    slots = [node for node in folded(build).blocks[0].nodes if node.target in ("param", "buffer")]
    assert [(node.target, dict(node.attrs)) for node in slots] == [
        ("param", {"slot": 0, "trainable": False}),
        ("buffer", {"slot": 1}),
    ]


def test_two_values_may_be_carried():
    """A hidden state and a loss summed up along the layers."""
    build = Builder()
    x, total = build.op("aten.tanh.default", build.input()), build.input("zero")
    for _ in range(4):
        gate = build.op("aten.softmax.int", build.linear(x))
        total = build.op("aten.add.Tensor", total, build.op("aten.mul.Tensor", gate, gate))
        x = build.residual(build.op("aten.mul.Tensor", x, gate))
    build.op("aten.add.Tensor", build.op("aten.neg.default", x), total)
    assert calls(folded(build)) == [(4, 2, 10)]


def test_the_cut_carries_the_fewest_values():
    """Between a norm and its users two values would pass, between layers one."""
    build = Builder()
    x = build.op("aten.tanh.default", build.input())
    for _ in range(4):
        normed = build.op("aten.layer_norm.default", x)
        x = build.op(
            "aten.add.Tensor", x, build.op("aten.mul.Tensor", build.linear(normed), build.linear(normed))
        )
    assert calls(folded(build)) == [(4, 1, 5)]


def test_a_branch_that_carries_nothing_belongs_to_its_layer():
    """Scale and gate from one embedding, at the start and the end of the layer."""
    build = Builder()
    x, time_ = build.op("aten.tanh.default", build.input()), build.op("aten.silu.default", build.input("t"))
    for _ in range(4):
        scale = build.op("aten.exp.default", build.linear(time_))
        inner = build.residual(build.op("aten.mul.Tensor", build.op("aten.layer_norm.default", x), scale))
        x = build.op("aten.add.Tensor", x, build.op("aten.mul.Tensor", inner, scale))
    assert calls(folded(build)) == [(4, 1, 11)]


def test_encoder_and_decoder_fold_separately():
    """Keys of the cross attention depend on the encoder and the layer's own weight only."""
    build = Builder()
    source, x = build.input("source"), build.input("target")
    for _ in range(2):
        source = build.residual(source)
    for _ in range(2):
        x = build.residual(x)
        score = build.op(
            "aten.mul.Tensor", build.linear(build.op("aten.exp.default", source)), build.linear(x)
        )
        x = build.op("aten.add.Tensor", score, x)
    assert calls(folded(build)) == [(2, 1, 5), (2, 1, 10)]


@pytest.mark.parametrize("used", [(1, 2), (2, 3), (1, 3)])
def test_a_value_used_outside_keeps_the_layers(used: tuple[int, ...]):
    """Some hidden states are used in the end."""
    build = Builder()
    states = [build.input()]
    for _ in range(4):
        states.append(build.residual(states[-1]))
    build.op("aten.cat.default", *(states[at] for at in used), states[4])
    assert max(call[0] for call in calls(folded(build))) == 2


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("which", ["what they hand on", "what they make beside"])
def test_what_all_layers_let_out_is_collected(which: str, count: int):
    """Hidden states, or logits, are joined in the end; of two layers it would be no less."""
    build = Builder()
    x, joined = build.linear(build.input()), []
    for _ in range(count):
        made = build.linear(x)
        x = build.op("aten.add.Tensor", build.residual(x), made)
        joined.append(x if which == "what they hand on" else made)
    end = build.op("aten.exp.default", x)
    result = folded(build, end, build.op("aten.cat.default", *joined))
    assert calls(result) == ([] if count == 2 else [(count, 1, 7)])
    assert count == 2 or len(result.sources("call")[0].results) == 1 + count


@pytest.mark.parametrize("used", [True, False])
def test_a_run_ends_where_a_value_leaves_it(used: bool):
    """The third hidden state is used too, or it is the loss."""
    build = Builder()
    states = [build.input()]
    for _ in range(6):
        states.append(build.residual(states[-1]))
    other = build.op("aten.exp.default", states[3]) if used else states[3]
    graph = build.graph(states[6], other)
    result = fold(graph, loss=None if used else 1)
    verify(result, after="fold")
    assert canonical_form(unfold(result)) == canonical_form(graph)
    assert calls(result) == [(3, 1, 5), (3, 1, 5)]


@pytest.mark.parametrize("returned", [(1, 2, 3, 4), (4, 3, 2, 1), (2,), (3, 1), (4,)])
def test_hidden_states_that_are_returned_are_collected(returned: tuple[int, ...]):
    """Of any layers, in any order; the last one is handed on anyway."""
    build = Builder()
    states = [build.linear(build.input())]
    for _ in range(4):
        states.append(build.residual(states[-1]))
    result = folded(build, build.op("aten.exp.default", states[4]), *(states[at] for at in returned))
    assert calls(result) == [(4, 1, 5)]
    assert len(result.sources("call")[0].results) == (1 if returned == (4,) else 5)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_what_layers_make_beside_is_collected(order: tuple[int, ...]):
    """What is worked out of it alone belongs to the layer."""
    build = Builder()
    x, logits = build.linear(build.input()), []
    for _ in range(4):
        made = build.linear(x)
        logits.append(build.op("aten.exp.default", made))
        x = build.op("aten.add.Tensor", build.residual(x), made)
    result = folded(build, build.op("aten.exp.default", x), *(logits[at] for at in order))
    assert calls(result) == [(4, 1, 8)]


def test_small_repeats_without_parameters_stay():
    """A block of an operation or two is not worth its call."""
    build = Builder()
    x = build.input()
    for _ in range(6):
        x = build.op("aten.mul.Tensor", build.op("aten.exp.default", x), x)
    assert calls(folded(build)) == []


def test_what_is_folded_stays_folded():
    """Calls of the input graph are left as they are."""
    once = fold(mlp(3).graph())
    assert fold(once) == once


@given(st.randoms(use_true_random=False))
def test_unfolding_undoes_folding(rng):
    """On random chains, uneven ones among them."""
    graph = random_chain(rng)
    result = fold(graph)
    verify(result, after="fold")
    assert canonical_form(unfold(result)) == canonical_form(graph)


@given(st.randoms(use_true_random=False))
def test_order_and_names_do_not_matter(rng):
    """Independent nodes in another order, values and modules under other names: the same text."""
    graph = random_chain(rng)
    other = disguised(graph, rng)
    assert canonical_form(other) == canonical_form(graph)
    assert print_graph(fold(other)) == print_graph(fold(graph))


@given(st.randoms(use_true_random=False))
def test_names_of_parameters_are_data(rng):
    """The text is the same but for them."""
    graph = random_chain(rng)
    fqns = [f"n{number}" for number in rng.sample(range(1000), len(graph.nodes))]
    nodes = [
        node.with_attrs(fqn=fqn) if node.target == "param" else node
        for node, fqn in zip(graph.nodes, fqns, strict=True)
    ]
    other = print_graph(fold(replace(graph, nodes=tuple(nodes))))
    assert re.sub('"n[0-9]+"', "_", other) == re.sub('"p[0-9]+"', "_", print_graph(fold(graph)))


def test_chains_of_one_carried_value_fold_whole():
    """Most random layers; the others lose one instance at most."""
    whole = 0
    for seed in range(100):
        rng = random.Random(seed)
        build = Builder()
        x = build.op("aten.tanh.default", build.input())
        shape = [rng.choice(("linear", "relu", "tanh", "mul", "add")) for _ in range(rng.randint(1, 8))]
        pick = rng.random()
        for _ in range(4):
            inner, choice = [x], random.Random(pick)
            for kind in shape:
                a, b = inner[-1], choice.choice(inner)
                inner.append(build.linear(a) if kind == "linear" else build.op(f"aten.{kind}", a, b))
            x = build.op("aten.add.Tensor", build.linear(inner[-1]), x)
        whole += [call[:2] for call in calls(folded(build))] == [(4, 1)]
    assert whole >= 95


def test_a_deep_model_folds_whole():
    build = mlp(0)
    x = "v2"
    for _ in range(2000):
        x = build.residual(x)
    graph = build.graph(x)
    assert calls(fold(graph)) == [(2000, 1, 5)]
