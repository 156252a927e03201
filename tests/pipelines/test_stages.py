"""Cutting a lowered program: each operation in one stage, what one sends the next receives, nothing else crosses."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from autopar.ir.errors import IRError, UnsupportedError, UsageError
from autopar.ir.pipeline import Mark
from autopar.ir.program import Program
from autopar.ir.verify import verify
from autopar.passes.live import holding
from autopar.passes.other_stages import cut_alike
from autopar.passes.pipelining import Shape, Unit, arrange, shapes, transfer_ns
from autopar.passes.pricing import Pricing
from autopar.passes.stages import belongs, cut, dependence, even_marks, live_for, placed
from autopar.passes.units import units_of
from tests.lowered import pricing_of
from tests.parity.planned import Case, mesh_of, planned

CASES = [
    Case(model="gpt2", mesh="dp=2", microbatches=2, layers=4), Case(model="llama", mesh="dp=2,tp=2", microbatches=4),
    Case(model="bert", mesh="tp=2", microbatches=2, folded=False),
]  # fmt: skip


def program_of(case: Case) -> Program:
    return planned(case).program


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_stages_are_the_program(case: Case, stages: int) -> None:
    program = program_of(case)
    assert program.loss is not None
    made = cut(program, even_marks(program, stages))
    assert len(made) == stages
    for before, after in itertools.pairwise(made):
        assert before.sends == after.receives
        assert before.program.loss is None
    assert made[-1].sends == () and made[-1].program.loss == program.loss
    for stage in made:
        verify(stage.program.graph, after="cut")
    whole = live_for(program.graph, program.loss)
    depends = dependence(whole.nodes)
    once = [n.results[0].name for s in made for n in s.program.graph.nodes if n.target not in ("call", "input")]
    for node in whole.nodes:
        if belongs(node, depends) and node.target != "call":
            assert once.count(node.results[0].name) == 1
    calls = sum(int(str(n.attr("count"))) for s in made for n in s.program.graph.nodes if n.target == "call")
    assert calls == sum(int(str(n.attr("count"))) for n in whole.nodes if n.target == "call")
    assert {p.fqn for s in made for p in s.program.parameters} == {p.fqn for p in program.parameters}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_units_cost_what_the_solution_costs(case: Case) -> None:
    """Also the parts of a loss, which lowering joins again."""
    found = planned(case)
    lean, full = holding(found.encoded, 0), holding(found.encoded, 1)
    units = units_of(found.model, found.program, found.solution, lean, full, anywhere=not case.folded)
    shared = {one: ns for unit in units for one, ns in unit.repeated_ns.items()}
    assert sum(unit.time_ns for unit in units) + sum(shared.values()) == pytest.approx(found.objective_ns, rel=1e-6)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_paired_with_itself_is_cut_where_it_was(case: Case, stages: int) -> None:
    program = program_of(case)
    marks = even_marks(program, stages)
    names = [[p.fqn for p in stage.program.parameters] for stage in cut(program, marks)]
    made = cut_alike(program, marks, program, ())
    assert [[p.fqn for p in stage.program.parameters] for stage in made] == names
    assert [_calls(stage.program) for stage in made] == [_calls(stage.program) for stage in cut(program, marks)]


def test_a_stage_never_begins_inside_of_a_call() -> None:
    """Marks of a program without blocks, in the middle of a layer, are no places of the one with blocks."""
    folded = program_of(CASES[0])
    apart = program_of(replace(CASES[0], folded=False))
    assert apart.loss is not None
    nodes = live_for(apart.graph, apart.loss).nodes
    depends = dependence(nodes)
    inside = [n for n in nodes if n.source.startswith("transformer.h.1.mlp") and belongs(n, depends)]
    mark = Mark(inside[1].results[0].name)
    with pytest.raises(UnsupportedError, match="stage 1 would begin inside of a layer"):
        cut_alike(apart, [mark], folded, ())
    assert len(cut_alike(apart, [mark], apart, ())) == 2


def _calls(program: Program) -> list[int]:
    return [int(str(node.attr("count"))) for node in program.graph.nodes if node.target == "call"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_only_values_that_depend_on_parameters_and_inputs_cross(case: Case) -> None:
    program = program_of(case)
    assert program.loss is not None
    depends = dependence(live_for(program.graph, program.loss).nodes)
    for stage in cut(program, even_marks(program, 2))[1:]:
        assert stage.receives
        assert all(depends.get(name.partition(".part")[0]) == 3 for name in stage.receives)


def test_a_run_of_layers_is_cut_between_two_of_them() -> None:
    program = program_of(CASES[0])
    (call,) = [node for node in program.graph.nodes if node.target == "call"]
    name = call.results[0].name
    nodes, stage_of = placed(program.graph.nodes, [Mark(name, 1), Mark(name, 3)])
    pieces = [(node, stage) for node, stage in zip(nodes, stage_of, strict=True) if node.target == "call"]
    assert [(node.attr("count"), stage) for node, stage in pieces] == [(1, 0), (2, 1), (1, 2)]
    params = [names for node, _ in pieces if isinstance(slots := node.attr("params"), tuple) for names in slots]
    assert tuple(params) == call.attr("params")
    assert pieces[-1][0].results == call.results


@pytest.mark.parametrize("marks", [["nowhere"], ["%call/9"], ["%call/2", "%call/1"]])
def test_a_mark_that_is_no_place_is_refused(marks: list[str]) -> None:
    program = program_of(CASES[0])
    (call,) = [node for node in program.graph.nodes if node.target == "call"]
    with pytest.raises(IRError, match="stage mark"):
        cut(program, [Mark.parse(mark.replace("%call", call.results[0].name)) for mark in marks])


@pytest.mark.parametrize("mark", [Mark("x"), Mark("add.2", 7)])
def test_marks_are_read_as_they_are_written(mark: Mark) -> None:
    assert Mark.parse(str(mark)) == mark


def test_more_stages_than_parts_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="stages, but the model has only"):
        even_marks(program_of(CASES[1]), 10_000)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_cut_is_found(seed: int) -> None:
    """Against every cut, or every equal one: the fastest slowest stage within memory, or none where none fits."""
    draw, equal = random.Random(seed), seed % 4 == 0
    units = [
        Unit(mark=Mark(f"u{i}"), time_ns=draw.randrange(1, 10**6), held_bytes=draw.randrange(100),
             saved_bytes=draw.randrange(50), transient_bytes=draw.randrange(20),
             entering_bytes=seed % 3 * draw.randrange(40))
        for i in range(draw.randrange(2, 8))
    ]  # fmt: skip
    places = draw.randrange(2, 4)
    shape = Shape(schedule=draw.choice(["1f1b", "gpipe"]), places=places, loops=1, microbatches=4, equal=equal)
    memory = draw.randrange(150, 700)
    pricing = pricing_of(mesh_of(f"pp={places}"))
    best = min(
        (worst for cuts in itertools.combinations(range(1, len(units)), places - 1)
         if (not equal or len(set(sizes((0, *cuts, len(units))))) == 1)
         and (worst := _slowest(units, (0, *cuts, len(units)), shape, memory, pricing)) is not None),
        default=None,
    )  # fmt: skip
    found = arrange(units, shape, pricing, memory)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.objective_ns == round(best * shape.stretch)
        assert max(found.bytes) <= memory


def sizes(bounds: tuple[int, ...]) -> list[int]:
    return [after - first for first, after in itertools.pairwise(bounds)]


def _slowest(
    units: list[Unit], bounds: tuple[int, ...], shape: Shape, memory: int, pricing: Pricing
) -> int | None:
    times = []
    for stage, (first, after) in enumerate(itertools.pairwise(bounds)):
        own = units[first:after]
        entering, leaving = (units[at].entering_bytes if 0 < at < len(units) else 0 for at in (first, after))
        size = sum(u.held_bytes for u in own) + round(sum(u.saved_bytes for u in own) * shape.live(stage))
        size += shape.received_bytes(stage, entering, leaving)
        if size + max(u.transient_bytes for u in own) > memory:
            return None
        sent = sum(2 * shape.microbatches * transfer_ns(size, pricing) for size in (entering, leaving))
        times.append(sum(u.time_ns for u in own) + sent)
    return max(times)


def test_a_schedule_says_which_numbers_of_microbatches_it_takes() -> None:
    assert [shape.microbatches for shape in shapes(None, 4, (1, 2, 4, 8), strict=True)] == [4, 8]
    assert [shape.microbatches for shape in shapes("interleaved", 3, (3, 4, 6), strict=True)] == [3, 6]
    assert shapes("1f1b", 4, (1, 2), strict=False) == []
    with pytest.raises(UsageError, match="needs 4 or more microbatches; possible here: 1, 2"):
        shapes("1f1b", 4, (1, 2), strict=True)
