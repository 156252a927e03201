"""Which sums of gradients wait for the end of a step: those behind which every use of the parameter stands."""

from __future__ import annotations

from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from autopar.ir.text import parse_graph
from tests.lowered import all_graphs, comms, lowered, model_of, names_of
from tests.parity.planned import Case, planned
from tests.passes.graphs import NORM
from tests.passes.test_owner import paths

TP = Mesh((("tp", 2),))
TWO_USES = """
graph @two {
  %x: f64[4,8] = input() {name="x"}
  %w: f64[8] = param() {fqn="w"}
  %y: f64[4,8] = aten.mul.Tensor(%x, %w) {}
  %r: f64[8] = aten.tanh.default(%w) {}
  %l: f64[] = aten.sum.default(%y) {}
  %m: f64[] = aten.sum.default(%r) {}
  %s: f64[] = aten.add.Tensor(%l, %m) {}
  return %s
}
"""


def late(program: Program) -> list[str]:
    return [node.operands[0] for node in comms(all_graphs(program)) if node.attr("owner") == "step"]  # type: ignore[misc]


def axes(program: Program) -> dict[str, tuple[str, ...]]:
    return {parameter.fqn: parameter.step_axes for parameter in program.parameters}


def test_a_norms_weights_wait_where_the_sequence_is_split() -> None:
    """Also over microbatches: their sum and the devices' change places."""
    time = {"mb": "d0"}
    for microbatches, more, layouts in ((1, {}, {}), (2, time, {"x": "mb:S(0)"})):
        choices = {name: {"tp": "d1", **more} for name in "yl"}
        program = lowered(model_of(parse_graph(NORM)), TP, choices, layouts, microbatches=microbatches)
        assert axes(program) == {"w": ("tp",), "b": ("tp",)}
        assert len(late(program)) == 2


def test_a_parameter_that_is_also_used_whole_does_not_wait() -> None:
    """A sum over all its gradient would count the whole part once a device."""
    program = lowered(model_of(parse_graph(TWO_USES)), TP, {"y": {"tp": "d0"}, "l": {"tp": "d0"}})
    assert axes(program) == {"w": ()} and not late(program)


def test_blocks_agree_with_their_parameters() -> None:
    """Behind each source node the axes of the marked conversions are those of every parameter it stands for."""
    seen = 0
    for mesh in ("tp=2", "dp=2,tp=2", "tp=4"):
        program = planned(Case(model="gpt2", mesh=mesh, microbatches=2)).program
        known = axes(program)
        for part in all_graphs(program):
            for source in part.sources("param"):
                steps = [s for path, _ in paths(part, source.result.name) for s in path if s.attr("owner") == "step"]
                marked = {str(step.attr("axis")) for step in steps}
                assert all(set(known[name]) == marked for name in names_of(program, part, source))
                seen += len(marked)
    assert seen
