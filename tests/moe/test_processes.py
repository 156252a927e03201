"""Mixtures of experts trained on gloo processes as on one device, their experts shared out among the devices of ep."""

from __future__ import annotations

import functools

import pytest

from tests import harness
from tests.moe.ranks import Case, Found, trained

EP2, DP2EP2, EP2TP2, EP4 = {"ep": 2}, {"dp": 2, "ep": 2}, {"ep": 2, "tp": 2}, {"ep": 4}
QUICK = Case(family="mixtral", mesh=EP2)
CASES = [
    Case(family="mixtral", mesh={"tp": 2}),
    Case(family="mixtral", mesh=EP2, options={"num_microbatches": 2, "recompute": "full"}),
    Case(family="mixtral", mesh=EP2, options={"recompute": "selective"}),
    Case(family="mixtral", mesh=EP2, routing="same"),
    Case(family="mixtral", mesh=EP2, options={"compile": "aot_eager"}),
    Case(family="mixtral", mesh={"pp": 2, "ep": 2}, options={"num_microbatches": 2}),
    *(Case(family="mixtral", mesh=mesh) for mesh in (DP2EP2, EP2TP2, EP4)),
    Case(family="mixtral", mesh=DP2EP2, options={"zero": 3}),
    Case(family="mixtral", mesh=DP2EP2, options={"zero": 3}, few=True),
    Case(family="mixtral", mesh=DP2EP2, options={"zero": 1, "num_microbatches": 2}, few=True),
    *(Case(family=name, mesh=mesh) for name in ("qwen3-moe", "deepseek-v3", "gpt-oss") for mesh in (EP2, DP2EP2)),
]


@functools.cache
def launched(world: int, cases: tuple[Case, ...]) -> list[list[Found]]:
    return harness.run_processes(world, harness.each, [(trained, (case,)) for case in cases], timeout_s=280)


def found(case: Case) -> list[Found]:
    """What each rank found: the slow cases of a world share its processes."""
    cases = (case,) if case is QUICK else tuple(other for other in CASES if other.world == case.world)
    return [by_case[cases.index(case)] for by_case in launched(case.world, cases)]


@pytest.mark.parametrize(
    "case", [pytest.param(QUICK, id=str(QUICK)), *(pytest.param(c, id=str(c), marks=pytest.mark.slow) for c in CASES)]
)
def test_training_is_that_of_one_device(case: Case) -> None:
    """Losses, every gradient, the norm and parameters after three steps; experts in parts, tokens sent to them."""
    ranks = found(case)
    ways = case.mesh.get("ep", 1)
    for rank in ranks:
        here, every = rank.kept
        cut = case.mesh.get("dp", 1) if case.options.get("zero") else 1
        assert here <= 1.05 / (ways * cut) * every
        assert rank.exchanged == (ways > 1)
        assert min(rank.split.values()) >= 0.95
        assert rank.place[1] == ways * case.mesh.get("dp", 1)
    assert len({rank.place[0] for rank in ranks}) == ranks[0].place[1]
