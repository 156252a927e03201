"""Layers that are almost alike never merge."""

import pytest

from autopar.ir.types import TensorType
from autopar.passes.fold import fold
from autopar.passes.order import canonical_form
from autopar.passes.unfold import unfold
from tests.fold.build import MATRIX, VECTOR, Builder, calls

WIDE = TensorType("f32", (8, 4))


def layer(build: Builder, x: str, *, odd: str = "") -> str:
    """``odd`` names what is unlike the other layers."""
    first = build.param(trainable=False) if odd == "frozen" else build.param()
    first = build.param(target="buffer") if odd == "buffer" else first
    second = first if odd == "tied inside" else build.param()
    if odd == "shape":
        wide = build.op("aten.linear.default", x, build.param(WIDE), type_=TensorType("f32", (8,)))
        hidden = build.op("aten.linear.default", wide, build.param(TensorType("f32", (4, 8))))
    else:
        hidden = build.linear(build.op("aten.relu.default", build.linear(x, first)), second)
    if odd == "dtype":
        half = build.op("aten.to.dtype", hidden, type_=TensorType("bf16", (4,)), dtype="bf16")
        hidden = build.op("aten.to.dtype", half, dtype="f32")
    rate = 0.2 if odd == "dropout p" else 0.1
    scale = {"int for float": 1, "bool for float": True}.get(odd, 1.0)
    hidden = build.op("aten.mul.Scalar", build.op("aten.dropout.default", hidden, p=rate), other=scale)
    if odd == "operation":
        hidden = build.op("aten.tanh.default", hidden)
    return build.op("aten.add.Tensor", *((hidden, x) if odd == "operands" else (x, hidden)))


KINDS = (
    "frozen", "buffer", "tied inside", "shape", "dtype", "dropout p", "int for float", "bool for float",
    "operation", "operands",
)  # fmt: skip


@pytest.mark.parametrize("odd", KINDS)
def test_an_odd_layer_among_others_stands_alone(odd):
    """Three like layers, the odd one, three like layers; of one whose addition alone is odd that begins the others."""
    build = Builder()
    x = build.input()
    for at in range(7):
        x = layer(build, x, odd=odd if at == 3 else "")
    graph = build.graph(x)
    result = fold(graph)
    assert [count for count, _, _ in calls(result)] == ([3, 3] if odd == "operands" else [3, 1, 3])
    assert canonical_form(unfold(result)) == canonical_form(graph)


@pytest.mark.parametrize("odd", KINDS)
def test_two_layers_of_which_one_is_odd_do_not_fold(odd):
    """Not even in part: what they have in common does not make a layer."""
    build = Builder()
    x = layer(build, layer(build, build.input()), odd=odd)
    assert not [block for block in fold(build.graph(x)).blocks if len(block.sources("param")) > 1]


def test_a_weight_tied_to_the_head_sets_its_layer_apart():
    """The second of five layers shares a weight with what follows them."""
    build = Builder()
    x, tied = build.op("aten.tanh.default", build.input()), build.param()
    for at in range(5):
        x = build.op(
            "aten.add.Tensor", x, build.op("aten.relu.default", build.linear(x, tied if at == 1 else None))
        )
    graph = build.graph(build.linear(x, tied))
    result = fold(graph)
    assert [count for count, _, _ in calls(result)] == [1, 3]
    assert canonical_form(unfold(result)) == canonical_form(graph)


def test_instances_that_tie_their_slots_differently_do_not_merge():
    """Weights (a, b, a) and (a, a, b)."""
    build = Builder()
    x = build.input()
    for pattern in ((0, 1, 0), (0, 0, 1)):
        weights = [build.param(), build.param()]
        for name, at in zip(("relu", "tanh", "neg"), pattern, strict=True):
            x = build.op(f"aten.{name}.default", build.linear(x, weights[at]))
    assert calls(fold(build.graph(x))) == []


def test_weights_shared_by_pairs_of_layers_fold_by_pairs():
    """Layers 0 and 1 read one weight, 2 and 3 the next."""
    build = Builder()
    x = build.op("aten.tanh.default", build.input())
    for _ in range(3):
        weight = build.param()
        for _ in range(2):
            x = build.op("aten.add.Tensor", x, build.op("aten.relu.default", build.linear(x, weight)))
    assert calls(fold(build.graph(x))) == [(3, 1, 6)]


def test_an_instance_that_skips_one_does_not_fold():
    """Each layer also reads the output of the layer before the last."""
    build = Builder()
    before, x = build.op("aten.tanh.default", build.input()), build.op("aten.neg.default", build.input("y"))
    for _ in range(5):
        before, x = x, build.op("aten.add.Tensor", build.linear(x), before)
    found = calls(fold(build.graph(x)))
    assert all(carried == 2 for _, carried, _ in found)


def test_shapes_in_the_build_helper_differ():
    """Otherwise the case above that changes a shape would change nothing."""
    assert len({MATRIX, VECTOR, WIDE}) == 3
