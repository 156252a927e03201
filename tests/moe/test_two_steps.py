"""Where experts lie on several nodes: rows go across them at once, or inside the node first, by what is faster."""

from __future__ import annotations

import copy
import functools

import pytest

from autopar.arguments import check
from autopar.compiling import ready
from autopar.cost_model import Cluster, axis_groups, load_profile
from autopar.cost_model.simulator import compare, simulate
from autopar.finding import find_plan
from autopar.ir.graph import Node
from autopar.ir.mesh import Mesh, across, within
from autopar.ir.optable import TABLE
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.ir.text import parse_graph
from autopar.passes.pricing import Pricing
from autopar.passes.strategies import Choice
from autopar.replay import program_of
from autopar.runtime.parity import compare as matches
from tests.families.measure import alone, on_mesh
from tests.families.mixtures import mixtral
from tests.lowered import model_of
from tests.moe.ranks import LAYERS
from tests.moe.test_exchange_plan import EXPERTS, INPUTS
from tests.parity.planned import NETWORKS

UNLIKE = Cluster(nodes=Cluster.parse("1x1xCPU").nodes + Cluster.parse("1x3xCPU").nodes)
PROFILE = load_profile(str(NETWORKS / "streams.toml"))
FOUR = Mesh((("ep", 4),))


def pricing(cluster: str | Cluster, mesh: Mesh = FOUR) -> Pricing:
    where = Cluster.load(cluster)
    return Pricing(mesh=mesh, cluster=where, profile=PROFILE, groups=axis_groups(mesh.axes, where))


def chosen(cluster: str | Cluster, tokens: int, mesh: Mesh = FOUR) -> tuple[int, int]:
    """Nanoseconds of an exchange of ``EXPERTS`` with so many tokens, and among how many neighbours rows go first."""
    model = model_of(parse_graph(EXPERTS.replace("[8,", f"[{tokens},")), INPUTS)
    given = (model.rules["g", "y"], TABLE["autopar.experts"], (Choice.parse("t>e"),) * len(mesh.axes), "f64")
    prices = pricing(cluster, mesh)
    return prices.exchange_ns(*given), prices.exchange_inside(*given)


def test_few_bytes_go_in_two_steps_and_many_in_one() -> None:
    """Two steps have fewer hops across nodes, one sends on both levels at once."""
    network = "2x2xCPU@100Gb/s"
    assert chosen(network, 8)[1] == 2
    assert chosen(network, 2**20)[1] == 0


@pytest.mark.parametrize("tokens", [8, 2**20])
def test_the_price_is_that_of_the_collectives_that_run(tokens: int) -> None:
    """There and back: one all_to_all over the axis each, or one inside the node and one across; the cheaper."""
    network = "2x2xCPU@100Gb/s"
    prices, sent = pricing(network), round(tokens // 4 * 2 * 6 * PROFILE.experts_imbalance) * 8
    flat, near, far = (prices.collective_ns("all_to_all", sent, axis) for axis in ("ep", within("ep"), across("ep")))
    cost, inside = chosen(network, tokens)
    assert cost == 2 * (near + far if inside else flat) == 2 * min(near + far, flat)


@pytest.mark.parametrize("cluster", ["1x4xCPU", "4x1xCPU", UNLIKE], ids=str)
def test_axes_within_a_node_or_with_one_device_on_each_or_on_unlike_nodes_take_one_step(cluster: str | Cluster) -> None:
    """There is nothing to do in two, or no place that every node has."""
    assert chosen(cluster, 8)[1] == 0


@functools.cache
def planned(cluster: str, mesh: tuple[tuple[str, int], ...]) -> tuple[Plan, Program]:
    family = mixtral(experts=8)
    arguments = check(cluster=cluster, mesh=dict(mesh), profile=PROFILE, name="m", num_microbatches=1)
    return find_plan(ready(family.build(), family.batch(), arguments), arguments)


def layers(program: Program) -> list[Node]:
    return [node for part in program.graph.blocks for node in part.nodes if node.target == "autopar.experts"]


TWO_STEPS = ("2x4xCPU", (("ep", 4), ("tp", 2)))


def test_program_and_plan_say_which_it_is() -> None:
    """The operation among how many neighbours, the list of collectives the parts of the axis."""
    plan, program = planned(*TWO_STEPS)
    assert {node.attr("inside") for node in layers(program)} == {2}
    sent = {(c.axis, c.phase) for c in plan.collectives if c.axis.startswith("ep") and c.kind == "all_to_all"}
    assert sent == {(part, phase) for part in ("ep.inside", "ep.across") for phase in ("forward", "backward")}
    plan, program = planned("2x4xCPU", (("dp", 2), ("ep", 4)))  # each ep on a node of its own
    assert {node.attr("inside") for node in layers(program)} == {None}
    assert {c.axis for c in plan.collectives if c.kind == "all_to_all"} == {"ep"}


def test_a_plan_read_again_runs_what_was_priced() -> None:
    """From its file alone, without the model."""
    plan, program = planned(*TWO_STEPS)
    again, _, _ = program_of(Plan.from_bytes(plan.to_bytes()), profile=PROFILE)
    assert [node.attrs for node in layers(again)] == [node.attrs for node in layers(program)]


def test_the_simulator_counts_what_the_objective_counts() -> None:
    """Both steps, each with its own group."""
    plan, program = planned(*TWO_STEPS)
    found = compare(simulate(program, Cluster.parse(TWO_STEPS[0]), PROFILE, optimizer=plan.optimizer), plan)
    assert abs(found.unexplained_s) <= 1e-9 * found.objective_s


def test_a_simulated_mesh_takes_such_a_program() -> None:
    """As one device, whichever way the rows would go."""
    family = LAYERS["top-2-capacity"]
    model, batch = family.build(), family.batch()
    arguments = check(cluster="2x2xCPU", mesh={"ep": 4}, profile=PROFILE, name="m", num_microbatches=1)
    readied = ready(model, batch, arguments)
    _, program = find_plan(readied, arguments)
    assert {node.attr("inside") for part in (program.graph, *program.graph.blocks) for node in part.nodes} == {None, 2}
    found, expected = on_mesh(program, model, batch, readied), alone(copy.deepcopy(model), batch, family)
    for what in ("losses", "gradients", "parameters"):
        matches(getattr(found, what), getattr(expected, what), tol=family.tolerance, what=what)
