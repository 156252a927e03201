"""The axis ep in plans: tokens enter split over it, experts are split over it, and both meet in one operation."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

import autopar
from autopar.arguments import check
from autopar.compiling import ready
from autopar.cost_model import Cluster, load_profile
from autopar.cost_model.simulator import compare, simulate
from autopar.finding import find_plan
from autopar.ir.constraints import Constraint
from autopar.ir.errors import UsageError
from autopar.ir.graph import Node
from autopar.ir.layout import Layout
from autopar.ir.mesh import Mesh
from autopar.ir.optable import TABLE
from autopar.ir.plan import Plan
from autopar.ir.program import Parameter, Program
from autopar.ir.text import parse_graph, print_node
from autopar.ir.types import TensorType
from autopar.passes.candidates import fitting, searched_meshes
from autopar.passes.facts import facts
from autopar.passes.hybrid import kept_texts
from autopar.passes.positions import positions
from autopar.passes.pricing import local_flops
from autopar.passes.strategies import Choice, Strategy, strategies
from tests.families import FAMILIES
from tests.families.mixtures import mixtral
from tests.lowered import model_of, pricing_of
from tests.parity.planned import NETWORKS

EXPERTS = """
graph @g {
  %x: f64[8,6] = input() {name="x"}
  %i: i64[8,2] = input() {name="i"}
  %w: f64[8,2] = input() {name="w"}
  %up: f64[4,10,6] = param() {fqn="up"}
  %down: f64[4,6,5] = param() {fqn="down"}
  %y: f64[8,6] = autopar.experts(%x, %i, %w, %up, %down) {gate="silu-glu"}
  return %y
}
"""
INPUTS: dict[str, tuple[int | None, int | None]] = dict.fromkeys("xiw", (0, None))
ROW, MODEL = TABLE["autopar.experts"], model_of(parse_graph(EXPERTS), INPUTS)
BOTH, EP_TP = (("dp", 2), ("ep", 2)), (("ep", 2), ("tp", 2))
SPLIT_AGAIN = (autopar.split("*.experts.*", axis="tp", dim=0),)


def legal(mesh: Mesh) -> tuple[Strategy, ...]:
    found = positions(MODEL.graph, MODEL.rules, INPUTS)
    key = ("g", "y")
    return strategies(MODEL.rules[key], found, key, MODEL.shapes[key], mesh, [frozenset()] * 5)


@pytest.mark.parametrize("text", ["t>e", "t/8>e", "n", "n/3", "P1", "-"])
def test_a_choice_reads_back_from_its_text(text: str) -> None:
    """Plans hold it."""
    assert str(Choice.parse(text)) == text


def test_an_exchange_splits_tokens_and_experts_and_sums_nothing() -> None:
    """No operand has both: the axis sees all its tokens, so gradients of its experts are whole."""
    mesh = Mesh((("ep", 2),))
    (found,) = (chosen for chosen in legal(mesh) if str(chosen.choices[0]) == "t>e")
    layouts = [layout.text() for layout in (*found.operands, *found.results) if layout is not None]
    assert layouts == ["ep:S(0)"] * 6


def test_the_name_ep_binds() -> None:
    """Experts are split over it, with or without their tokens; dp has tokens alone, and tp never the batch."""
    offered = {axis: {str(c.choices[0]) for c in legal(Mesh(((axis, 2),)))} for axis in ("ep", "dp", "tp")}
    assert offered == {"ep": {"e", "t>e"}, "dp": {"t"}, "tp": {"e", "-"}}


def test_one_axis_exchanges_at_a_time() -> None:
    """Of two axes with experts at most one has the tokens of the other devices sent to them."""
    texts = {" ".join(map(str, c.choices)) for c in legal(Mesh((("x", 2), ("y", 2))))}
    assert {"t>e t", "t t>e", "t>e e", "e t>e", "e e"} <= texts
    assert "t>e t>e" not in texts


def test_rows_are_sent_to_the_experts_of_one_device() -> None:
    """Where another axis splits experts too, each of its devices sends what its own experts get."""
    mesh, rule = Mesh(EP_TP), MODEL.rules["g", "y"]
    sent = {" ".join(map(str, c.choices)): local_flops(ROW.exchanged, rule, c.choices, mesh) for c in legal(mesh)}
    assert sent["t>e -"] == 4 * 2 * 6 == 2 * sent["t>e e"]


@functools.cache
def planned(
    mesh: tuple[tuple[str, int], ...], imbalance: float | None = None, constraints: tuple[Constraint, ...] = ()
) -> tuple[Plan, Program]:  # fmt: skip
    family = FAMILIES["mixtral"]
    world = 1
    for _, size in mesh:
        world *= size
    profile = load_profile(str(NETWORKS / "streams.toml"))
    if imbalance is not None:
        experts = profile.data.experts.model_copy(update={"imbalance": imbalance})
        profile.data = profile.data.model_copy(update={"experts": experts})
    arguments = check(
        cluster=f"1x{world}xCPU", mesh=dict(mesh), profile=profile, name="m", num_microbatches=1,
        constraints=constraints,
    )  # fmt: skip
    return find_plan(ready(family.build(), family.batch(), arguments), arguments)


def layer(program: Program) -> Node:
    return next(n for part in program.graph.blocks for n in part.nodes if n.target == "autopar.experts")


def test_the_program_says_over_which_axis_it_exchanges() -> None:
    """With how many experts lie between those of neighbours, and how many the rows here are shared out among."""
    node = layer(planned(BOTH)[1])
    assert {key: node.attr(key) for key in ("exchange", "stride", "start", "among")} == {
        "exchange": "ep", "stride": 2, "start": (), "among": 2,
    }  # fmt: skip
    assert "exchange" in print_node(node)


def test_gradients_are_reduced_over_exactly_the_axes_that_split_the_work() -> None:
    """Of dense parameters over dp and ep, of experts over dp: theirs are whole on ep."""
    for parameter in planned(BOTH)[1].parameters:
        if parameter.trainable:
            assert parameter.runtime_axes == (("dp",) if ".experts." in parameter.fqn else ("dp", "ep"))


def test_batches_are_split_over_ep_too() -> None:
    """Attention and all else see one more data axis."""
    assert planned(BOTH)[1].data_axes == ("dp", "ep")


def test_the_plan_lists_what_is_sent() -> None:
    """Rows of the tokens there and back, forward and backward, of each layer."""
    found = [c for c in planned(BOTH)[0].collectives if c.axis == "ep" and c.kind == "all_to_all"]
    tokens, chosen, hidden = 8 * 12 // 4, 2, 32
    assert {(c.bytes, c.count, c.phase) for c in found} == {
        (8 * tokens * chosen * hidden, 4, phase) for phase in ("forward", "backward")
    }


def test_the_plan_lists_what_is_sent_where_another_axis_splits_experts_too() -> None:
    """Half of the rows of its tokens, since another device has the same tokens and the other experts."""
    plan, program = planned(EP_TP, constraints=SPLIT_AGAIN)
    assert layer(program).attr("start"), "experts are split over one axis"
    sent = {c.bytes for c in plan.collectives if c.kind == "all_to_all" and c.count == 2}
    assert sent == {8 * (8 * 12 // 2) * 2 * 32 // 2}


@pytest.mark.parametrize(
    ("mesh", "constraints"), [(BOTH, ()), ((("ep", 2),), ()), (EP_TP, ()), (EP_TP, SPLIT_AGAIN)], ids=str
)
def test_the_simulator_counts_what_the_objective_counts(
    mesh: tuple[tuple[str, int], ...], constraints: tuple[Constraint, ...]
) -> None:
    """Exchanges, and the work of experts that are split: differences are explained within 1 %."""
    plan, program = planned(mesh, constraints=constraints)
    world = plan.world_size
    cluster = Cluster.parse(f"1x{world}xCPU")
    profile = load_profile(str(NETWORKS / "streams.toml"))
    found = compare(simulate(program, cluster, profile, optimizer=plan.optimizer), plan)
    assert abs(found.unexplained_s) <= 1e-9 * found.objective_s


def test_a_router_that_shares_out_unevenly_makes_a_step_longer() -> None:
    """The factor of the profile counts where experts are split, and nowhere else."""
    even, uneven = (planned((("ep", 2),), imbalance)[0].objective_s for imbalance in (1.0, 2.0))
    assert even < uneven
    even, uneven = (planned((("dp", 2),), imbalance)[0].objective_s for imbalance in (1.0, 2.0))
    assert even == uneven


def test_an_exchange_is_priced_by_what_is_sent() -> None:
    """Two all_to_all each way of the tokens here, of the device with most of them."""
    model, mesh = model_of(parse_graph(EXPERTS), INPUTS), Mesh((("ep", 2),))
    pricing = pricing_of(mesh, str(NETWORKS / "streams.toml"))
    rule, found = model.rules["g", "y"], facts(model.graph)["g", "y"]
    entry = TABLE["autopar.experts"]
    sent = round(4 * 2 * 6 * pricing.profile.experts_imbalance) * 8
    cost = pricing.exchange_ns(rule, entry, (Choice.parse("t>e"),), found.type.dtype)
    assert cost == 2 * pricing.collective_ns("all_to_all", sent, "ep") > 0
    assert pricing.exchange_ns(rule, entry, (Choice.parse("e"),), found.type.dtype) == 0


def test_models_with_experts_are_tried_on_ep() -> None:
    """In sizes that divide the experts, where dp and ep together divide the batch; others never."""
    names = {str(mesh) for mesh in searched_meshes(8, 8, 16, 4)}
    assert {"ep=4, tp=2", "dp=2, ep=4", "dp=4, ep=2"} <= names
    assert not {"ep=8", "cp=2, ep=4"} & names
    assert not any("ep" in str(mesh) for mesh in searched_meshes(8, 8, 16))
    assert "dp=4, ep=2" not in {str(mesh) for mesh in searched_meshes(8, 4, 16, 4)}


def test_a_batch_that_ep_does_not_cut_is_refused_with_the_reason() -> None:
    """Tokens enter split over dp and ep."""
    with pytest.raises(UsageError, match=r"cannot be cut into dp x ep = 8 parts"):
        fitting([Mesh.of({"dp": 4, "ep": 2})], 4, None, None)


def test_few_experts_on_a_device_are_cut_inside() -> None:
    """Cut along the experts, one of two data-parallel devices would have all there are and the other none."""
    mesh = Mesh(BOTH)
    one = Parameter(fqn="up", type=TensorType("f32", (2, 10, 6)), compute_dtype="f32", runtime_axes=("dp",),
                    layout=Layout.parse("dp:R, ep:S(0)", mesh))  # fmt: skip
    assert one.cut_dim(2) == 1
    assert kept_texts(one, dict(BOTH)) == {"dp": "S(1)"}
    assert replace(one, type=TensorType("f32", (4, 10, 6))).cut_dim(2) == 0
    assert replace(one, type=TensorType("f32", (2, 5, 7))).cut_dim(2) == 0


def test_a_free_search_shares_experts_out_where_that_is_fastest() -> None:
    """Where experts weigh more than the rows that go to them: nothing was pinned."""
    family = mixtral(experts=8, intermediate_size=256)
    where = {"cluster": "1x4xCPU", "profile": str(NETWORKS / "streams.toml")}
    free = autopar.plan(family.build(), family.batch(), **where)  # type: ignore[arg-type]
    alone = autopar.plan(family.build(), family.batch(), mesh={"dp": 4}, **where)  # type: ignore[arg-type]
    assert free.mesh == {"ep": 4}
    assert free.objective_s < alone.objective_s
    assert free.gap < 0.01
