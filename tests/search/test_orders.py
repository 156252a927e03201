"""The bound of all meshes holds for every mesh that a user pins: both orders of axes, each level, microbatches."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar.cli.explain_view import is_chosen
from autopar.cost_model import Cluster
from autopar.explaining import meshes
from autopar.ir.mesh import Mesh
from autopar.ir.plan import Plan
from autopar.passes.candidates import orders

SLOW = "2x4xV100-SXM2-32GB@10Gb/s"
PINS: list[dict[str, Any]] = [
    *({"mesh": {one: 2, other: 4}} for one, other in itertools.permutations(("dp", "cp", "tp"), 2)),
    {"mesh": {"dp": 2, "cp": 4}, "num_microbatches": 2}, {"mesh": {"cp": 8}, "zero": 2}, {"zero": 3},
    {"mesh": {"dp": 8}, "num_microbatches": 2, "zero": 2}, {"mesh": {"dp": 2, "cp": 4}, "zero": 3},
]  # fmt: skip


class Classifier(nn.Module):
    """Layers on a sequence, and many classes for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4096, 256)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        self.classes = nn.Linear(256, 16384)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = hidden + torch.relu(layer(hidden))
        return F.cross_entropy(self.classes(hidden.mean(1)), labels)


@functools.cache
def planned(cluster: str, pins: tuple[tuple[str, Any], ...] = ()) -> Plan:
    given: dict[str, Any] = {name: dict(value) if name == "mesh" else value for name, value in pins}
    with torch.device("meta"):
        model = Classifier()
    inputs = {"x": torch.zeros(16, 64, dtype=torch.int64), "labels": torch.zeros(16, dtype=torch.int64)}
    return autopar.plan(model, inputs, cluster=cluster, **given)


@pytest.mark.parametrize("pins", PINS, ids=str)
def test_no_pin_makes_a_plan_below_the_bound(pins: dict[str, Any]) -> None:
    frozen = tuple((name, tuple(value.items()) if name == "mesh" else value) for name, value in pins.items())
    free, pinned = planned(SLOW), planned(SLOW, frozen)
    assert free.lower_bound_s <= pinned.objective_s * (1 + 1e-9)


def test_gradients_of_many_classes_stay_inside_nodes() -> None:
    """On a slow network tensor parallelism goes across nodes: it sends less than gradients do."""
    free, usual = planned(SLOW), planned(SLOW, (("mesh", (("dp", 2), ("tp", 4))),))
    assert free.objective_s < 0.9 * usual.objective_s


def test_more_microbatches_are_no_faster_for_want_of_copies_inside_nodes() -> None:
    """The root may have HSDP with one microbatch, too."""
    mesh = ("mesh", (("dp", 2), ("cp", 4)))
    one, two = planned(SLOW, (mesh, ("num_microbatches", 1))), planned(SLOW, (mesh, ("num_microbatches", 2)))
    assert one.objective_s <= two.objective_s and "" in one.hsdp


def test_a_mesh_is_turned_around_where_other_neighbours_share_nodes() -> None:
    mesh = Mesh((("dp", 2), ("tp", 4)))
    assert [str(each) for each in orders(mesh, Cluster.load("2x4xA100-SXM-80GB"))] == ["dp=2, tp=4", "tp=4, dp=2"]
    assert list(orders(mesh, Cluster.load("1x8xA100-SXM-80GB"))) == [mesh]
    three = Mesh((("dp", 2), ("ep", 2), ("tp", 2)))
    assert list(orders(three, Cluster.load("2x4xA100-SXM-80GB"))) == [three]


def test_of_two_orders_one_is_chosen() -> None:
    plan = planned(SLOW)
    assert [each.full.names for each in meshes(plan) if is_chosen(plan, each)] == [plan.axes]
