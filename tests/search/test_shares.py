"""Unequal shares of the batch in the search: how much faster, what bounds them, where they are not offered."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autopar
from autopar.arguments import Arguments, check
from autopar.compiling import Readied, ready
from autopar.cost_model import Cluster, Network, NodeGroup, load_profile
from autopar.differing import differences
from autopar.finding import find_plan
from autopar.ir.errors import FileFormatError
from autopar.ir.mesh import Mesh
from autopar.ir.plan import Plan
from autopar.models import resolve
from autopar.passes.bounds import Bounds
from autopar.passes.build import build
from autopar.passes.found import Limits
from autopar.passes.ground import Ground
from autopar.passes.outer import Candidate, outer_candidates, with_shares
from autopar.passes.paced import finish_of, sums
from autopar.passes.positions import positions
from autopar.passes.pricing import Pricing
from autopar.passes.problem import Problem
from autopar.passes.solve import solve
from autopar.verifying.sizes import smaller_shares
from tests.parity.processes import NETWORKS
from tests.parity.shares import Mixed, cluster, planned
from tests.search.exhaustive import outcomes

BOUND = 1.344  # of a split in proportion to 15.7 and 9.3 TFLOP/s over an even one
UNLIMITED = 10**15


def mixed(*groups: tuple[int, str]) -> Cluster:
    return Cluster(
        nodes=tuple(NodeGroup(count=1, gpus=gpus, device=device) for gpus, device in groups),
        network=Network(bandwidth_bytes_s=12.5e9),
    )


def test_a_mixed_cluster_is_as_fast_as_its_devices_together() -> None:
    """BERT-Large in float32, of 6 layers for the test's sake, on 8 V100 and 8 P100, against an even split."""
    cluster = mixed((8, "V100-SXM2-32GB"), (8, "P100-PCIE-16GB"))
    found = resolve("zoo:bert-large", batch_size=512, seq_len=128, layers=6)
    asked: dict[str, Any] = {"cluster": cluster, "mesh": {"dp": 16}}
    arguments = check(**asked)
    readied = ready(found.model, found.example_inputs, arguments)
    shared, _ = find_plan(readied, arguments)
    even, _ = find_plan(readied, check(num_microbatches=1, **asked))
    assert even.shares == {}
    assert shared.shares == {"dp": (5,) * 8 + (3,) * 8}
    assert shared.num_microbatches == 4
    # gradients hide behind the last microbatch alone, and those of each are added to those of the ones before
    assert even.objective_s / shared.objective_s > 0.88 * BOUND
    assert shared.gap < 0.08  # fewer microbatches, which hide more, cannot be shared out so well: no bound says so
    assert max(shared.memory.peak_bytes) < 16e9
    assert max(shared.zero.values()) <= 1


class Chain(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(layers))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return (x * self.scale.square()).square().sum()


def instance(seed: int, folder: Path) -> tuple[Readied, Arguments]:
    """2 to 4 devices of two or three kinds whose rates of work and of memory are not in proportion."""
    rng = random.Random(seed)
    kinds = ["Odd", "Even", "Other"][: rng.choice((2, 2, 3))]
    text = "".join(
        f"[device.{kind}]\nfp32_tflops = {10 ** rng.uniform(-5, -4)}\nmemory_gb = 1\nmemory_tb_s = "
        f"{10 ** rng.uniform(-5, -4)}\nintra = 'near'\ninter = 'near'\nnics_per_node = 1\n"
        f"overlap_fraction = {rng.choice((0.0, 0.5, 1.0))}\n"
        for kind in kinds
    )
    path = folder / "profile.toml"
    path.write_text(f"{text}[link.near]\nbandwidth_gb_s = {10 ** rng.uniform(-3, 1)}\nlatency_us = 0.1\n")
    cluster = mixed(*((rng.choice((1, 1, 2)), kind) for kind in kinds))
    batch = 8 * cluster.world_size
    arguments = check(cluster=cluster, profile=str(path), mesh={"dp": cluster.world_size})
    return ready(Chain(rng.randint(1, 3)), (torch.zeros(batch, 8),), arguments), arguments


def bounds_of(readied: Readied, arguments: Arguments) -> tuple[Bounds, list[Candidate]]:
    model = readied.model
    marks = positions(model.graph, model.rules, model.settings.inputs)
    bounds = Bounds(
        model=model, cluster=arguments.cluster, profile=arguments.profile, positions=marks, memory_bytes=UNLIMITED
    )
    world = arguments.cluster.world_size
    return bounds, outer_candidates(arguments.limits(), world, 8 * world, None, 0)


def uneven(seed: int, folder: Path) -> tuple[Readied, Arguments, Bounds, Candidate]:
    """An instance with its first candidate of unequal shares."""
    readied, arguments = instance(seed, folder)
    bounds, even = bounds_of(readied, arguments)
    return readied, arguments, bounds, with_shares(even, len(arguments.cluster.devices))[0]


def own_problem(bounds: Bounds, candidate: Candidate, pricing: Pricing, device: str, count: int) -> Problem:
    """A device's in so many microbatches, sharing nothing with others."""
    model = bounds.model_of(candidate)
    ground = Ground(model, replace(bounds.positions, inner=False), replace(pricing, device=device))
    return build(model, ground.found, ground.pricing, count, ground=ground).problem


def fastest(bounds: Bounds, candidate: Candidate) -> int:
    """Of all shares and all placements: each device's own problem, as often as it runs, its placement its own."""
    cluster, encoded = bounds.cluster, bounds.encode(candidate, None)
    assert encoded is not None
    units, devices = cluster.world_size * candidate.count, cluster.devices
    numbers = [sum(group.gpus for group in cluster.nodes if group.device == device) for device in devices]
    time: dict[tuple[str, int], int] = {}

    def least(device: str, count: int) -> int:
        if (device, count) not in time:
            time[device, count] = outcomes(own_problem(bounds, candidate, encoded[1], device, count))[0][0]
        return time[device, count]

    found = []
    for most in itertools.product(range(1, units), repeat=len(devices)):  # of the devices of a kind
        if sum(n * m for n, m in zip(numbers, most, strict=True)) >= units:
            found.append(max(least(device, m) for device, m in zip(devices, most, strict=True)))
    return min(found)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_faster_than_the_bound(seed: int, tmp_path: Path) -> None:
    """Over all shares, and all placements of each device by itself, which is less than any one plan can do."""
    readied, arguments, bounds, candidate = uneven(seed, tmp_path)
    encoded = bounds.encode(candidate, None)
    assert encoded is not None
    bound = solve(encoded[0].problem, memory_bytes=UNLIMITED, effort=0).bound_ns
    best = fastest(bounds, candidate)
    assert bound <= best
    found, _ = find_plan(readied, arguments)
    assert found.lower_bound_s * 1e9 <= best + 1
    if found.shares:
        assert found.lower_bound_s <= found.objective_s


@pytest.mark.parametrize("seed", range(4))
def test_a_device_takes_as_long_as_its_own_problem_says(seed: int, tmp_path: Path) -> None:
    """In any number of microbatches, gradients added up among them."""
    _, arguments, bounds, candidate = uneven(seed, tmp_path)
    made = bounds.encode(candidate, None)
    assert made is not None
    solution = solve(made[0].problem, memory_bytes=UNLIMITED, effort=0)
    for device in arguments.cluster.devices:
        finish, took = finish_of(bounds, made[1], candidate, solution, device), []
        for count in (1, 2, 3, 5):
            own = sums(own_problem(bounds, candidate, made[1], device, count), solution)
            took.append(sum(
                repeat * (itself.sync_ns + once.exposed_ns)
                for (repeat, itself), (_, once, _) in zip(own, finish.instances, strict=True)
            ))  # fmt: skip
            assert finish(count) == took[-1]
        assert took[2] - took[1] == took[1] - took[0] > 0


def gpt2_plan() -> Plan:
    return planned(Mixed(model="gpt2", fast=1, slow=1, microbatches=2))


def test_equal_devices_have_equal_shares() -> None:
    assert planned(Mixed(model="gpt2", fast=2, slow=0, microbatches=2)).document().get("shares") is None
    assert with_shares(outer_candidates(Limits(memory_bytes=1), 4, 8, None, 0), 1) == []


def test_what_communicates_every_microbatch_has_equal_shares() -> None:
    """ZeRO 2 and 3, one microbatch, and statistics of the batch."""
    mixed_gpt2 = Mixed(model="gpt2", fast=1, slow=1, microbatches=2)
    assert not planned(mixed_gpt2, zero=3).shares
    assert not planned(mixed_gpt2, num_microbatches=1).shares
    found = autopar.plan(
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), (torch.zeros(8, 8),) * 2, cluster=cluster(1, 1),
        profile=str(NETWORKS / "mixed.toml"), mesh={"dp": 2}, loss_fn=F.mse_loss,
    )  # fmt: skip
    assert not found.shares


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shares": {"dp": [3, 2]}}, "2 numbers that differ and add up to 4"),
        ({"shares": {"dp": [2, 2]}}, "2 numbers that differ"),
        ({"shares": {"dp": [4]}}, "2 numbers that differ"),
        ({"shares": {"dp": [4, 0]}}, "greater than or equal to 1"),
        ({"shares": {"tp": [3, 1]}}, "only a mesh of the axis dp alone"),
        ({"mesh": {"dp": 2, "tp": 1}}, "only a mesh of the axis dp alone"),
    ],
)
def test_wrong_shares_are_refused(changed: dict[str, Any], message: str) -> None:
    document = {**gpt2_plan().document(), **changed}
    with pytest.raises(FileFormatError, match=message):
        Plan.from_bytes(json.dumps(document).encode())


def test_the_plan_says_who_runs_how_many() -> None:
    """In words, in JSON, in tables, and beside a plan of equal shares; and it is the plan that is read again."""
    found = gpt2_plan()
    assert found.document()["shares"] == {"dp": [3, 1]}
    assert Plan.from_bytes(found.to_bytes()) == found.model_copy(update={"search": None})
    assert found.explain().splitlines()[0].endswith("2 microbatch(es) on average: 1 rank 3, 1 rank 1")
    equal = planned(Mixed(model="gpt2", fast=1, slow=1, microbatches=2), zero=3)
    settings = differences(found, equal, load_profile(str(NETWORKS / "mixed.toml"))).settings
    (said,) = [each for each in settings if each.what == "shares"]
    assert (said.left, said.right) == ("1 rank 3, 1 rank 1", "equal")
    once = {(c.kind, c.count) for c in found.collectives if c.phase == "forward"}
    assert once == {("all_reduce", 1), ("all_to_all", 1)}


@pytest.mark.slow
def test_a_verification_runs_unequal_shares_too() -> None:
    """On two processes, the first with one microbatch more than on average, the second with one less."""
    mixed_bert = Mixed(model="bert", fast=2, slow=2, microbatches=2, zero=1)
    found = planned(mixed_bert)
    assert found.shares == {"dp": (3, 3, 1, 1)}
    assert smaller_shares(Mesh((("dp", 2),)), 2) == (3, 1)
    told = autopar.verify(mixed_bert.case.build(), mixed_bert.case.batch(0), found)
    assert told.mesh == {"dp": 2}
    assert told.worst < told.tolerance
