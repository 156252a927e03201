"""A lowered program that data-parallel ranks may run different numbers of times, or why they may not."""

from __future__ import annotations

import pytest

from autopar.ir.errors import UnsupportedError
from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from autopar.ir.text import parse_graph
from autopar.passes.uneven import exchanged_once, uneven
from tests.lowered import lowered, model_of
from tests.passes.graphs import MLP
from tests.passes.test_lowering import body, expected

BATCH = {"dp": "*b0", "mb": "*b0"}
SPLIT = {**dict.fromkeys("hryzs", BATCH), "l": {"dp": "d0", "mb": "d0"}}
INPUT = {"x": "dp:S(0), mb:S(0)"}
# Every sample is moved by what the parameters alone give.
MOVED = """
graph @moved {
  %x: f64[8,12] = input() {name="x"}
  %c: f64[12] = param() {fqn="bias"}
  %d: f64[12] = aten.tanh.default(%c) {}
  %z: f64[8,12] = aten.add.Tensor(%x, %d) {}
  %l: f64[] = aten.sum.default(%z) {}
  return %l
}
"""
# A summand that follows from no input counts once, not once a rank.
PENALTY = """
graph @penalty {
  %x: f64[8,12] = input() {name="x"}
  %c: f64[12] = buffer() {fqn="bias"}
  %l: f64[] = aten.sum.default(%x) {}
  %p: f64[] = aten.sum.default(%c) {}
  %t: f64[] = aten.add.Tensor(%l, %p) {}
  return %t
}
"""


def program(text: str, choices: dict[str, dict[str, str]], layouts: dict[str, str]) -> Program:
    """On two ranks, with two microbatches each on average."""
    model = model_of(parse_graph(text), {"x": (0, None)})
    return lowered(model, Mesh((("dp", 2),)), choices, layouts, microbatches=2)


def test_the_loss_is_a_summand_and_gradients_are_the_runtimes() -> None:
    found = uneven(program(MLP, SPLIT, INPUT), (3, 1))
    assert (
        body(found).splitlines()[-2:]
        == expected("""
        %s: f64[8,12]{dp:S(0), mb:S(0)} = aten.tanh.default(%z) {}
        %l: f64[]{dp:P(sum), mb:P(sum)} = aten.sum.default(%s) {}
    """).splitlines()
    )
    assert found.loss == "l" == found.graph.outputs[0]
    assert found.shares == (3, 1)
    assert all(parameter.runtime_axes == ("dp",) for parameter in found.parameters)
    assert exchanged_once(found) == (("all_reduce", 8),)


def test_what_parameters_alone_give_returns_a_part_of_the_gradient() -> None:
    """Of equal shares its gradient is added up every microbatch; here the parameter's is, once a step."""
    choices = {"z": BATCH, "l": {"dp": "d0", "mb": "d0"}}
    even = program(MOVED, choices, INPUT)
    assert 'comm.identity(%d) {axis="dp", backward="all_reduce"}' in body(even)
    assert even.parameters[0].runtime_axes == ()
    found = uneven(even, (1, 3))
    assert 'comm.identity(%d) {axis="dp", backward="all_reduce", owner="runtime"}' in body(found)
    assert found.parameters[0].runtime_axes == ("dp",)


@pytest.mark.parametrize(
    ("text", "choices", "layouts", "problem"),
    [
        (
            PENALTY, {"l": {"dp": "d0", "mb": "d0"}, "t": {"dp": "P0", "mb": "P0"}}, INPUT,
            "p.1.whole: input is computed once a step and cut into parts for ranks and microbatches afterwards",
        ),
        (
            MLP, SPLIT, {**INPUT, "a": "dp:S(0)"},
            "a: param gives a {dp:S(0), mb:R}, not split over dp and microbatches alike",
        ),
        (
            MLP, {**{name: {"mb": "*b0"} for name in "hryzs"}, "l": {"mb": "d0"}}, {"x": "mb:S(0)"},
            "x: input gives x {dp:R, mb:S(0)}, not split over dp and microbatches alike",
        ),
    ],
)  # fmt: skip
def test_ranks_that_meet_within_a_microbatch_have_equal_shares(
    text: str, choices: dict[str, dict[str, str]], layouts: dict[str, str], problem: str
) -> None:
    with pytest.raises(UnsupportedError) as told:
        uneven(program(text, choices, layouts), (3, 1))
    assert str(told.value) == (
        f"{problem}, so data-parallel ranks cannot take unequal shares of the batch; use num_microbatches=1 for equal "
        "ones"
    )
