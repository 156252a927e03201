"""``profile``: what it measures, what it leaves alone, what it refuses. No figure is compared with a clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.live_memory import LiveMemory
from autopar.runtime.profiling import Figures, StepProfile, _timed_waits, _waits_of_graphs, split_kernels
from tests.harness import run_processes
from tests.parity.processes import NETWORKS
from tests.runtime.trained import local as part_of
from tests.runtime.trained import make as made_by_hand

STEPS = 3


class Net(nn.Module):
    """Counts its calls and drops, so that a step changes buffers and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(self.down(torch.relu(self.up(x)))), 0.5, self.training)


def state(module: Any) -> dict[str, Tensor]:
    """Everything that a step changes, whole."""
    found: dict[str, Tensor] = dict(module.full_state_dict())
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        assert isinstance(gradient, DTensor)
        found[f"{name}.grad"] = gradient.full_tensor().clone()
    return {**found, "rng_step": torch.tensor(module.rng_step)}


def profiled(meshes: list[dict[str, int]], compile: bool | str = False) -> list[dict[str, Any]]:
    """Profiles between two steps; what they say, and what they changed."""
    found = []
    for mesh in meshes:
        torch.manual_seed(0)
        x, target = torch.randn(8, 16), torch.randn(8, 16)
        module = autopar.parallelize(
            Net(), (x, target), mesh=mesh, profile=str(NETWORKS / "fair.toml"), loss_fn=F.mse_loss, compile=compile
        )
        x, target = module.shard_inputs((x, target))
        module.train_step(x, target=target)
        before = state(module)
        profile = module.profile(STEPS, x, target=target)
        after = state(module)
        try:
            module.profile(0, x, target=target)
            refused = ""
        except autopar.errors.UsageError as error:
            refused = str(error)
        found.append({
            "changed": [name for name in before if not torch.equal(before[name], after[name])], "names": list(before),
            "profile": profile, "refused": refused,
        })  # fmt: skip
    return found


def test_a_profile_leaves_training_as_it_was() -> None:
    """Parameters, gradients, running statistics and the count of steps; every rank has the same figures."""
    first, second = run_processes(2, profiled, [{"dp": 2}, {"tp": 2}])
    for one, other in zip(first, second, strict=True):
        assert not one["changed"] and {"norm.running_mean", "up.weight.grad", "rng_step"} <= set(one["names"])
        assert one["profile"] == other["profile"]
        assert one["refused"] == "profile of 0 steps: at least 1 is needed"


def test_a_profile_stands_beside_its_plan() -> None:
    """Measured: a step that is no shorter than its parts, waits where ranks talk, no bubble without a pipeline."""
    for found in run_processes(2, profiled, [{"dp": 2}])[0]:
        profile = found["profile"]
        assert profile.steps == STEPS and profile.planned is not None
        measured = profile.measured
        assert measured.step_s > 0 and measured.compute_s > 0 and measured.exposed_comm_s > 0
        assert measured.bubble_s == 0
        weights = 4 * (2 * 16 * 64 + 64 + 16 + 2 * 16)
        assert measured.peak_bytes > 2 * weights  # parameters and gradients
        assert str(profile).splitlines()[0].split() == ["median", "of", "3", "steps", "measured", "planned"]


def test_one_process_waits_for_nobody() -> None:
    (found,) = run_processes(1, profiled, [{}])[0]
    assert found["profile"].measured.exposed_comm_s == 0


def test_figures_print_as_a_table() -> None:
    measured = Figures(step_s=0.25, compute_s=0.2, exposed_comm_s=0.05, bubble_s=0, peak_bytes=1_500_000)
    assert str(StepProfile(steps=5, measured=measured, planned=None)) == "\n".join([
        "median of 5 steps             measured      planned",
        "step                          250.0 ms            -",
        "  compute                     200.0 ms            -",
        "  exposed communication        50.0 ms            -",
        "  bubble                        0.0 ms            -",
        "peak memory                     1.5 MB            -",
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([("gemm", (0, 2)), ("ncclKernel_AllReduce", (1, 4))], (2, 2)),
        ([("gemm", (0, 2)), ("add", (1, 3)), ("ncclDevKernel_AllGather", (0, 3))], (3, 0)),
        ([("ncclDevKernel_ReduceScatter", (0, 1)), ("gemm", (5, 6))], (1, 1)),
        ([], (0, 0)),
    ],
)
def test_communication_is_exposed_where_nothing_computes(kernels: Any, expected: tuple[float, float]) -> None:
    """Kernels may overlap in any way; each moment counts once."""
    assert split_kernels(kernels) == expected


def waits() -> tuple[bool, bool, bool]:
    """Whether a collective counts as one, a message as a message, and nothing after the measurement."""
    collectives, messages = [0.0], [0.0]
    x = torch.ones(4)
    with _timed_waits(collectives, messages):
        dist.all_reduce(x)
        seen = collectives[0] > 0 and messages[0] == 0
        before = collectives[0]
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)
        told = messages[0] > 0 and collectives[0] == before
    last = collectives[0]
    dist.barrier()
    return seen, told, collectives[0] == last


def test_waits_for_messages_are_apart_from_collectives() -> None:
    assert run_processes(2, waits) == [(True, True, True)] * 2


def test_live_memory_counts_a_storage_once_until_it_is_freed() -> None:
    known = torch.zeros(1000)
    with LiveMemory([known]) as live:
        a = known + 1
        b = a.view(10, 100).t()
        assert live.peak_bytes == 8000
        del a, b
        c = known * 2
        assert live.peak_bytes == 8000
        d = torch.cat([c, c])
    assert live.peak_bytes == 4000 + 4000 + 8000 == 8000 + d.nbytes


def waits_in_graphs() -> float:
    """Seconds in the waits of a compiled block, which no ``Work`` tells of."""
    module = made_by_hand({"tp": 2}, compile="aot_eager")
    parts = part_of(module, 0)
    module.train_step(**parts)

    def step() -> None:
        module.train_step(**parts)

    return _waits_of_graphs(step)


@pytest.mark.slow
def test_waits_in_compiled_graphs_are_seen() -> None:
    assert all(seconds > 0 for seconds in run_processes(2, waits_in_graphs))
