"""Batch norm of a sharded batch has the statistics of the whole one, and costs what it must."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autopar.errors import UnsupportedError
from autopar.ir.layout import P
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.families import FAMILIES
from tests.lowered import all_graphs, collectives
from tests.state.networks import Normed, Residual, made, pairs
from tests.state.simulated import difference, planned, simulated


def test_statistics_of_a_sharded_batch_are_summed_over_its_parts() -> None:
    """Mean, variance and the loss forward; the gradients of mean, scale and shift backward."""
    model, _ = made("batch norm 1d")
    inputs = torch.randn(65536, 8).double(), torch.randn(65536, 4).double()
    found = planned(model, inputs, "dp=2", network="fair", zero=0)
    graph = found.program.graph
    sums = [node.result.layout for node in graph.nodes if node.target == "aten.sum.dim_IntList"][:2]
    assert [layout["dp"] for layout in sums if layout is not None] == [P, P]
    assert collectives(found.program, "dp") == ["all_reduce"] * 3
    assert collectives(found.program, "dp", "backward") == ["all_reduce"] * 3


def test_repeated_blocks_with_a_batch_norm_fold() -> None:
    model, inputs = made("residual")
    found = planned(model, inputs, "dp=2")
    (block,) = found.readied.model.graph.blocks
    (call,) = [node for node in found.readied.model.graph.nodes if node.target == "call"]
    assert call.attr("count") == 4
    assert sum(node.target == "autopar.assign" for node in block.nodes) == 1
    assert found.plan.blocks[0].count == 4


@pytest.mark.parametrize("name", ["residual", "averages", "batch norm 1d"])
def test_a_change_of_a_buffer_forbids_microbatches(name: str) -> None:
    buffer = {"residual": "blocks.0.norm.running_mean", "averages": "odd", "batch norm 1d": "norm.running_mean"}[name]
    model, inputs = made(name)
    with pytest.raises(UnsupportedError, match=rf"changes the buffer {buffer}, .*; use num_microbatches=1"):
        planned(model, inputs, "dp=2", num_microbatches=2)


def test_statistics_of_the_batch_forbid_microbatches_even_if_they_are_not_kept() -> None:
    """The module that works across the batch is named, and the line."""
    model, inputs = made("no statistics")
    with pytest.raises(UnsupportedError, match=r"^norm networks.py:\d+: .* works across the batch"):
        planned(model, inputs, "dp=2", num_microbatches=2)


def test_evaluated_batch_norm_may_be_cut_into_microbatches() -> None:
    model, inputs = made("evaluated")
    found = planned(model, inputs, "dp=2", num_microbatches=2)
    assert difference(simulated(found, model, inputs), 0, model, inputs) <= 1e-10


def test_a_cumulative_average_is_refused_by_name() -> None:
    model = Normed(lambda n: nn.BatchNorm1d(n, momentum=None, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match=r"norm: BatchNorm1d\(momentum=None\)"):
        planned(model, pairs(), "dp=2")


def test_half_precision_keeps_statistics_in_single() -> None:
    """Sums, running statistics and their update are f32; the result is as near to f32 as torch's own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    with torch.no_grad():
        model[0].bias.add_(30.0)  # type: ignore[operator]  # a mean far from 0 needs more than 8 bits
    inputs = torch.randn(64, 8), torch.randn(64, 4)
    found = planned(model, inputs, "dp=2", loss_fn=F.mse_loss, mixed_precision="bf16")
    kept = {"aten.sum.dim_IntList", "aten.rsqrt.default", "aten.square.default"}
    for graph in all_graphs(found.program):
        assert {n.result.type.dtype for n in graph.nodes if n.target in kept} == {"f32"}
    halves = tuple(tensor.bfloat16() for tensor in inputs)
    state = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    got = simulate(found.program, found.readied.traced.calling.flatten(halves[:1], {"target": halves[1]}), state)
    one = copy.deepcopy(model)
    one[:2](inputs[0])
    wanted = {"1.running_mean": one[1].running_mean, "1.running_var": one[1].running_var}
    compare(got.buffers, wanted, tol=1e-2, what="running statistics")  # type: ignore[arg-type]
    assert {tensor.dtype for tensor in got.buffers.values()} == {torch.float32, torch.int64}


def test_a_plan_with_assigns_is_data_like_any_other() -> None:
    """Its bytes depend on the problem alone, and it fits the model it was made for."""
    model, inputs = made("residual")
    first, second = (planned(model, inputs, "dp=2,tp=2") for _ in range(2))
    assert first.plan.sha256 == second.plan.sha256
    assert first.plan.fingerprint == second.plan.fingerprint
    other = planned(Residual(layers=5), inputs, "dp=2,tp=2")
    assert other.plan.fingerprint.graph_sha256 != first.plan.fingerprint.graph_sha256


MESHES = ["dp=2", "tp=2", "dp=2,tp=2"]
VISION = [
    *(pytest.param("resnet", mesh, marks=[] if mesh == "dp=2,tp=2" else pytest.mark.slow) for mesh in MESHES),
    *(pytest.param("segformer", mesh, marks=[] if mesh == "dp=2" else pytest.mark.slow) for mesh in MESHES),
]


@pytest.mark.parametrize(("name", "mesh"), VISION)
def test_models_of_pictures_keep_the_statistics_of_one_device(name: str, mesh: str) -> None:
    family = FAMILIES[name]
    model, batch = family.build(), family.batch()
    found = planned(model, batch, mesh, num_microbatches=1)
    got = simulated(found, model, batch)
    assert len(got.buffers) == sum("running" in n or "num_batches" in n for n, _ in model.named_buffers())
    loss = found.readied.traced.loss_output
    assert difference(got, loss, model, batch, family.tolerance) <= family.tolerance
