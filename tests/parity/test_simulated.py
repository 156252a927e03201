"""Planned, lowered and simulated: loss and every gradient are those of one device, and the work is split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.ir.graph import SOURCES
from autopar.ir.optable import TABLE
from autopar.ir.program import Program
from autopar.runtime.simulate import Simulated
from tests.models import BATCH, inputs
from tests.parity.planned import Case, check, planned, run
from tests.parity.split import may_split, split_share, stored_share

MODELS = ("gpt2", "llama", "bert")
MESHES = ("dp=2", "tp=2", "dp=2,tp=2", "tp=4", "cp=2", "dp=2,cp=2")
PLAIN = [Case(model=m, mesh=mesh, microbatches=n) for m in MODELS for mesh in MESHES for n in (1, 2, 4)]
# On the free network plans convert at every turn.
VARIED = [
    Case(model=m, mesh=mesh, microbatches=n, zero=zero, recompute=recompute, network=network)
    for m in MODELS
    for mesh, n in (("dp=2", 1), ("dp=2,tp=2", 2), ("cp=2", 1))
    for zero, recompute, network in (
        (0, "none", "free"), (0, "full", "fair"), (3, "none", "fair"), (3, "full", "free"), (1, "selective", "fair")
    )
]  # fmt: skip
OTHERS = [Case(model="gpt2_as_it_is", mesh="tp=2", microbatches=2)]
OTHERS += [Case(model=m, mesh="dp=2,tp=2", microbatches=2, folded=False) for m in MODELS]
MORE = [
    Case(model=m, mesh=mesh, microbatches=n)
    for m in MODELS
    for mesh, n in (
        ("x=2", 1),
        ("x=4", 2),
        ("tp=2,dp=2", 2),
        ("cp=2,tp=2", 1),
        ("dp=2,cp=2,tp=2", 1),
        ("dp=4", 2),
        ("cp=4", 1),
    )
]


@pytest.mark.parametrize("case", [*PLAIN, *VARIED, *OTHERS], ids=str)
def test_sharded_training_is_single_device_training(case: Case) -> None:
    """One step on a batch in which every sample has another number of labels: loss and all gradients."""
    plan = planned(case)
    check(run(plan), case.model, 1)


@pytest.mark.parametrize("case", [c for c in PLAIN if "dp" in c.mesh or c.microbatches > 1], ids=str)
def test_a_rank_or_microbatch_without_labels_learns_nothing(case: Case) -> None:
    """Half of the batch has no valid label: whole ranks and microbatches add zero to the loss, not NaN."""
    check(run(planned(case), BATCH // 2), case.model, BATCH // 2)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_other_meshes(case: Case) -> None:
    """Free axis names, other orders, three axes."""
    check(run(planned(case)), case.model, 1)


def test_a_batch_without_any_label_is_not_a_number_anywhere() -> None:
    """0 / 0, as on one device."""
    found: Simulated = run(planned(Case(model="bert", mesh="dp=2", microbatches=2)), BATCH)
    assert found.loss is not None and found.loss.isnan()


@pytest.mark.parametrize("case", [c for c in PLAIN if c.microbatches < 4], ids=str)
def test_every_axis_divides_the_matrix_products(case: Case) -> None:
    """At least 95 % of their FLOPs on each axis: a plan that only replicates proves nothing."""
    program: Program = planned(case).program
    for axis, size in program.mesh.axes:
        assert size == 1 or split_share(program, axis) >= 0.95, axis


@pytest.mark.parametrize("case", [c for c in PLAIN if "tp" in c.mesh and c.microbatches == 1], ids=str)
def test_tensor_parallelism_divides_the_parameters(case: Case) -> None:
    """Of those it may split, each device keeps 1/k, and at most a fifth more; they are nearly all bytes."""
    plan = planned(case)
    size = plan.program.mesh.size("tp")
    assert stored_share(plan, "tp") <= 1.2 / size
    weights = {p.fqn: p.type.nbytes for p in plan.program.parameters if p.trainable}
    assert sum(weights[fqn] for fqn in may_split(plan, "tp")) >= 0.95 * sum(weights.values())


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2"])
@pytest.mark.parametrize("name", MODELS)
def test_folded_and_unfolded_search_cost_the_same(name: str, mesh: str, microbatches: int) -> None:
    """A repeated layer as one block with its count is a shorter way to write the same problem.

    But for what is reduced at once, layers or the whole model: collectives start for free here. And but for rounding
    each parameter's share.
    """
    case = Case(model=name, mesh=mesh, microbatches=microbatches, zero=0, recompute="none", network="free")
    folded, unfolded = planned(case), planned(replace(case, folded=False))
    assert folded.program.graph.blocks and not unfolded.program.graph.blocks
    assert abs(folded.objective_ns - unfolded.objective_ns) <= 4 * len(folded.program.parameters)


@pytest.mark.parametrize("name", MODELS)
def test_no_operation_is_an_island(name: str) -> None:
    """Each operation has a row of the table, and only tables of positions are computed by every device alike."""
    graph = planned(Case(model=name, mesh="tp=2")).model.graph
    targets = {n.target for part in (graph, *graph.blocks) for n in part.nodes if n.target not in (*SOURCES, "call")}
    assert targets <= set(TABLE)
    assert {t for t in targets if TABLE[t].spec == "replicated"} <= {"aten.arange.start_step"}


@pytest.mark.parametrize("name", MODELS)
def test_labels_differ_on_every_sample(name: str) -> None:
    """Or a wrong denominator would not show."""
    counts = (inputs(name)["labels"] != -100).sum(1).tolist()
    assert len(set(counts)) == BATCH and counts[0] == 0
