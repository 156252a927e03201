"""Loops that are written for one device, with optimizers, schedules and parameter groups of torch, give the same."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from autopar.runtime.parity import compare
from tests import harness
from tests.loop import loops
from tests.parity.processes import Case

TWO = [Case(model="gpt2", mesh={"dp": 2}, options={"zero": 3})]
SLOW = [
    Case(model="gpt2", mesh={"dp": 2}, options={"zero": 0}), Case(model="gpt2", mesh={"tp": 2}),
    Case(model="bert frozen", mesh={"tp": 2}),
]  # fmt: skip
FOUR = [
    *(Case(model="gpt2", mesh={"dp": 2, "tp": 2}, options={"zero": zero}) for zero in (0, 3)),
    Case(model="bert frozen", mesh={"dp": 2, "tp": 2}, options={"zero": 3}),
]  # fmt: skip
LAUNCHES = {"two": (2, TWO), "slow": (2, SLOW), "four": (4, FOUR)}
EACH = [
    pytest.param(name, case, id=f"{name}-{case}", marks=[pytest.mark.slow] * (name != "two"))
    for name, (_, cases) in LAUNCHES.items() for case in cases
]  # fmt: skip


@functools.cache
def launched(launch: str) -> list[list[Any]]:
    size, cases = LAUNCHES[launch]
    work: list[harness.Work] = [(loops.train, (case,)) for case in cases] + [(loops.forgotten, (cases[0],))]
    return harness.run_processes(size, harness.each, work, timeout_s=300)


@functools.cache
def expected(model: str) -> dict[str, Any]:
    return loops.expected(Case(model=model, mesh={"dp": 1}))


@pytest.mark.parametrize(("launch", "case"), EACH)
def test_optimizers_of_torch_work_unchanged(launch: str, case: Case) -> None:
    """Parameters after three steps, whatever the meshes and placements of the parameters."""
    for by_case in launched(launch):
        found = by_case[LAUNCHES[launch][1].index(case)]
        for name in loops.OPTIMIZERS:
            assert compare(found[name], expected(case.model)[name], tol=1e-10, what=f"{case}: {name}") <= 1e-10


@pytest.mark.parametrize(("launch", "case"), EACH)
def test_groups_schedules_accumulation_and_clipping_are_those_of_one_device(launch: str, case: Case) -> None:
    """Losses, norms before clipping and learning rates of every step; parameters after the last."""
    wanted = expected(case.model)
    for by_case in launched(launch):
        found = by_case[LAUNCHES[launch][1].index(case)]
        assert found["recipe"] == pytest.approx(wanted["recipe"], rel=1e-10)
        compare(found["recipe state"], wanted["recipe state"], tol=1e-10, what=f"{case}: recipe")


@pytest.mark.parametrize(
    "launch", ["two", pytest.param("slow", marks=pytest.mark.slow), pytest.param("four", marks=pytest.mark.slow)]
)
def test_a_forward_without_a_backward_leaves_nothing_stale(launch: str) -> None:
    """FSDP2 keeps gathered weights for a backward; the next call reads the updated ones all the same."""
    for by_case in launched(launch):
        found = by_case[-1]
        assert found[:3] == pytest.approx(found[3:], rel=1e-10)
