"""HSDP on gloo processes: parameters cut among neighbours of an axis, a copy with each group of neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from autopar.ir.errors import VerificationError
from autopar.runtime.parity import compare
from tests.harness import run_processes
from tests.runtime import hybrid, trained
from tests.runtime.programs import LAYERS
from tests.runtime.test_training import check

PAIRS = {"dp": 4, "inside": (2,)}
FOUR: list[dict[str, Any]] = [
    {**PAIRS, "zero": 1, "microbatches": 2, "recompute": "selective"},
    {**PAIRS, "zero": 2, "microbatches": 2},
    {**PAIRS, "zero": 3, "microbatches": 2},
    {"dp": 2, "cp": 2, "inside": (1, 2), "zero": 3, "microbatches": 2},
]
MORE: list[dict[str, Any]] = [
    {**PAIRS, "zero": 1},
    {**PAIRS, "zero": 3, "recompute": "full"},
    {**PAIRS, "zero": 3, "microbatches": 2, "root_zero": 0},
    {**PAIRS, "zero": 0, "microbatches": 2, "root_zero": 3},
    {"dp": 2, "cp": 2, "inside": (2, 1), "zero": 2, "microbatches": 2},
]
EIGHT: list[dict[str, Any]] = [
    {**PAIRS, "tp": 2, "zero": 3, "microbatches": 2},
    {**PAIRS, "tp": 2, "zero": 1, "recompute": "full"},
    {"dp": 4, "cp": 2, "inside": (2, 2), "zero": 3, "microbatches": 2},
    {"dp": 4, "cp": 2, "inside": (2, 1), "zero": 2, "microbatches": 2},
]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return trained.expected()


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [(4, FOUR), pytest.param(4, MORE, marks=pytest.mark.slow), pytest.param(8, EIGHT, marks=pytest.mark.slow)],
    ids=["four", "more", "eight"],
)
def test_training_equals_one_device(
    world_size: int, cases: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    """Loss, gradients, their norm and the parameters of the single-device run, at every level."""
    for by_case in run_processes(world_size, trained.run_all, trained.train, cases, timeout_s=280):
        for case, found in zip(cases, by_case, strict=True):
            try:
                check(found, expected)
            except Exception as error:
                raise AssertionError(f"{case}: {error}") from error


def test_plain_forward_equals_one_device(expected: dict[str, Any]) -> None:
    """With the user's own backward, of which every one is complete."""
    cases = [{**PAIRS, "zero": 3, "microbatches": 2}, {**PAIRS, "zero": 2}]
    for by_case in run_processes(4, trained.run_all, trained.forward, cases):
        for found in by_case:
            check(found, expected)


def test_a_device_holds_one_part_of_its_group_only() -> None:
    """Half of each parameter where two neighbours share it among four devices; equal halves in both groups."""
    ranks = run_processes(4, hybrid.parts, {**PAIRS, "zero": 3})
    for mine, copy in ((0, 2), (1, 3)):
        for name, (part, whole) in ranks[mine].items():
            assert part.numel() * 2 == whole, name
            compare({name: ranks[copy][name][0]}, {name: part}, tol=0.0, what="copies")


def test_what_crosses_groups_does_so_once_a_step() -> None:
    """Of 2 microbatches: gradients are scattered inside in each, and the copies added up after the last.

    Parameters are gathered inside, for every forward and backward but those of the root, which stay.
    """
    for counts in run_processes(4, hybrid.traffic, {**PAIRS, "zero": 3, "microbatches": 2}):
        assert counts["reduce_scatter", 2] == 2 * hybrid.GROUPS
        assert counts["all_reduce", 2] == hybrid.GROUPS
        assert counts["all_gather", 2] == 2 * 2 * LAYERS + 1
        assert {kind for kind, size in counts if size == 4} == {"all_reduce"}  # the loss


@pytest.mark.parametrize("fault", ["too early", pytest.param("not at all", marks=pytest.mark.slow)])
def test_gradients_that_are_not_added_up_among_copies_are_found(fault: str, expected: dict[str, Any]) -> None:
    """The comparison that the other tests make fails where the runtime is broken on purpose."""
    for rank in run_processes(4, hybrid.broken, {**PAIRS, "zero": 3, "microbatches": 2}, fault):
        with pytest.raises(VerificationError):
            check(rank, expected)
