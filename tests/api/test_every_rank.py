"""On 64 devices that are not there, every rank issues the collectives that its groups expect, in their order.

A program's graphs run as each rank on meta tensors; the whole ``ParallelModule`` with FSDP2 runs on fake
tensors as some ranks, or as all of them in the slow suite.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from autopar.arguments import check
from autopar.compiling import ready
from autopar.finding import find_plan
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.models import resolve
from tests import harness
from tests.api.every_rank import NAMES, Sent, lowered, trained

WORLD = 64
SEARCHED, TWO_AXES = None, (("dp", 8), ("tp", 8))
NCCL_DTYPES = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool,
}  # fmt: skip
# Minutes: 64 ranks on two cores.
SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]
PLANS = [
    pytest.param(2, TWO_AXES, id="dp8-tp8-2-layers"),
    pytest.param(4, SEARCHED, marks=SLOW, id="searched-4-layers"),
    pytest.param(32, SEARCHED, marks=SLOW, id="searched-32-layers"),
]
# One group of each axis of dp 8 × tp 8 meets in rank 0.
SOME = (0, 1, 8)


@functools.cache
def planned(layers: int, mesh: tuple[tuple[str, int], ...] | None) -> tuple[Plan, Program]:
    """Llama 3 8B as `autopar plan` of the acceptance plans it, with fewer layers."""
    found = resolve("zoo:llama3-8b", batch_size=512, seq_len=4096, layers=layers)
    arguments = check(cluster="8x8xH100-SXM", mixed_precision="bf16", mesh=None if mesh is None else dict(mesh))
    return find_plan(ready(found.model, found.example_inputs, arguments), arguments)


@functools.cache
def all_lowered(layers: int, mesh: tuple[tuple[str, int], ...] | None) -> dict[int, Sent]:
    program = planned(layers, mesh)[1]
    return {rank: lowered(program, rank) for rank in range(WORLD)}


@functools.cache
def all_trained(layers: int, mesh: tuple[tuple[str, int], ...] | None, ranks: tuple[int, ...]) -> dict[int, Sent]:
    """Each rank in a process of its own."""
    program = planned(layers, mesh)[1]
    with ProcessPoolExecutor(2, mp_context=harness._context, max_tasks_per_child=1) as pool:
        return dict(zip(ranks, pool.map(trained, [program] * len(ranks), ranks), strict=True))


def disagreements(by_rank: Mapping[int, Sent]) -> list[str]:
    """Groups in which two of the ranks given do not issue the same sequence."""
    found = []
    for rank, sent in by_rank.items():
        for group, calls in sent.items():
            for other in set(group) & set(by_rank):
                if by_rank[other].get(group) != calls:
                    found.append(f"ranks {rank} and {other} in {group}")
    return found


def kinds(by_rank: Mapping[int, Sent]) -> set[str]:
    return {call.name for sent in by_rank.values() for calls in sent.values() for call in calls}


def dtypes(by_rank: Iterable[Sent]) -> set[torch.dtype]:
    return {call.dtype for sent in by_rank for calls in sent.values() for call in calls}


@pytest.mark.parametrize(("layers", "mesh"), PLANS)
def test_all_members_of_a_group_issue_the_same_sequence(layers, mesh):
    """All 64 ranks: collective, shapes and dtype, forward and backward; only what NCCL has."""
    sent = all_lowered(layers, mesh)
    assert disagreements(sent) == []
    assert kinds(sent) <= set(NAMES.values())
    assert dtypes(sent.values()) <= NCCL_DTYPES
    assert all(len(calls) for of_rank in sent.values() for calls in of_rank.values())
    sizes = {len(group) for of_rank in sent.values() for group in of_rank}
    assert sizes <= {size for _, size in planned(layers, mesh)[1].mesh.axes}


@pytest.mark.parametrize(
    ("layers", "mesh", "ranks"),
    [
        pytest.param(4, SEARCHED, (0, 63), marks=SLOW, id="searched-4-layers-some"),
        pytest.param(2, TWO_AXES, SOME, id="dp8-tp8-2-layers-some"),
        pytest.param(4, SEARCHED, tuple(range(WORLD)), marks=SLOW, id="searched-4-layers-all"),
        pytest.param(2, TWO_AXES, tuple(range(WORLD)), marks=SLOW, id="dp8-tp8-2-layers-all"),
        pytest.param(32, SEARCHED, (0, 63), marks=SLOW, id="searched-32-layers-some"),
    ],
)  # fmt: skip
def test_with_fsdp_all_members_of_a_group_issue_the_same_sequence(layers, mesh, ranks):
    """A whole training step and the clipping, with the gathers and reductions of FSDP2."""
    sent = all_trained(layers, mesh, ranks)
    assert disagreements(sent) == []
    assert kinds(sent) <= set(NAMES.values())
    assert dtypes(sent.values()) <= NCCL_DTYPES
    assert {"all_gather", "reduce_scatter"} <= {call.name for call in sent[0][_data_group(sent[0], mesh)]}


def _data_group(sent: Sent, mesh: tuple[tuple[str, int], ...] | None) -> tuple[int, ...]:
    step = 1 if mesh is None else dict(mesh)["tp"]
    return next(group for group in sent if group[1] - group[0] == step)


def test_what_the_module_sends_over_tp_is_what_its_graphs_send():
    """FSDP2 has no part in it; the sums at the end of the step and the norm of the gradients come last."""
    for rank, sent in all_trained(2, TWO_AXES, SOME).items():
        expected = all_lowered(2, TWO_AXES)[rank]
        (group,) = [group for group in expected if group[1] - group[0] == 1]
        assert sent[group][: len(expected[group])] == expected[group]
        assert {call.name for call in sent[group][len(expected[group]) :]} <= {"all_reduce"}


def test_the_searched_plan_is_pure_data_parallelism():
    """Why a second plan, with tensor parallelism pinned, is looked at."""
    assert planned(4, SEARCHED)[0].mesh == {"dp": WORLD}


def test_a_rank_that_goes_its_own_way_is_found():
    """The check itself: one call fewer, or another shape, on one rank."""
    sent = dict(all_lowered(2, TWO_AXES))
    group, calls = next(iter(sent[5].items()))
    for changed in (calls[:-1], [calls[0]._replace(shapes=((1,),)), *calls[1:]]):
        assert any("ranks 5 and" in line for line in disagreements(sent | {5: {**sent[5], group: changed}}))
