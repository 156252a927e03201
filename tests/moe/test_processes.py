"""Mixtures of experts trained on gloo processes as on one device, their experts shared out among the devices of ep."""

from __future__ import annotations

import functools
import itertools
import math

import pytest

from tests import harness
from tests.moe.ranks import LAYERS, Case, Found, trained

EP2, DP2EP2, EP2TP2, PP2EP2, EP4 = {"ep": 2}, {"dp": 2, "ep": 2}, {"ep": 2, "tp": 2}, {"pp": 2, "ep": 2}, {"ep": 4}
EIGHT = ({"dp": 2, "ep": 2, "tp": 2}, {"pp": 2, "dp": 2, "ep": 2})
QUICK = Case(family="mixtral", mesh=EP2)
MODELS = ("mixtral", "qwen3-moe", "deepseek-v3", "gpt-oss")
KINDS = ("top-2", "top-2-capacity", "2-top-1", "2-top-1-capacity")
# Their routing leaves experts empty, and gives one device all the others' rows.
UNEVEN = [
    *(Case(family="mixtral", mesh=mesh, routing="same") for mesh in (EP2, EP4)),
    *(Case(family=name, mesh=EP4, routing="skewed") for name in ("mixtral", "qwen3-moe", "top-2-capacity")),
    Case(family="gpt-oss", mesh=DP2EP2, routing="skewed"),
    Case(family="top-1", mesh=EP4, routing="same"),
    Case(family="top-1", mesh=EP2TP2, routing="skewed"),
    Case(family="2-top-1", mesh=PP2EP2, options={"num_microbatches": 2}, routing="same"),
]
# Several nodes: rows of an axis that spans them go inside the node first, and then across.
TWO = {"cluster": "2x2xCPU"}
NODES = [
    *(Case(family=name, mesh=EP4, options=TWO, inside=2) for name in ("mixtral", "deepseek-v3", "2-top-1")),
    *(Case(family="top-1", mesh=EP4, options=TWO, routing=how, inside=2) for how in ("same", "skewed")),
    Case(family="mixtral", mesh=EP4, options={**TWO, "recompute": "selective", "num_microbatches": 2}, inside=2),
    Case(family="mixtral", mesh=EP4, options={**TWO, "compile": "aot_eager"}, inside=2),
    Case(family="mixtral", mesh=DP2EP2, options=TWO),
    Case(family="qwen3-moe", mesh={"ep": 4, "tp": 2}, options={"cluster": "2x4xCPU"}, routing="skewed", inside=2),
    Case(family="top-2", mesh={"ep": 8}, options={"cluster": "2x4xCPU"}, inside=4),
    Case(family="top-2", mesh={"pp": 2, "ep": 4}, options={"cluster": "4x2xCPU", "num_microbatches": 2}, inside=2),
]
CASES = [
    Case(family="mixtral", mesh={"tp": 2}),
    Case(family="mixtral", mesh=EP2, options={"num_microbatches": 2, "recompute": "full"}),
    Case(family="mixtral", mesh=EP2, options={"recompute": "selective"}),
    Case(family="mixtral", mesh=EP2, options={"compile": "aot_eager"}),
    Case(family="mixtral", mesh=DP2EP2, options={"zero": 3}),
    Case(family="mixtral-of-2", mesh=DP2EP2, options={"zero": 3}),
    Case(family="mixtral-of-2", mesh=DP2EP2, options={"zero": 1, "num_microbatches": 2}),
    *(Case(family=name, mesh=mesh) for name in (*MODELS[1:], *KINDS) for mesh in (EP2,)),
    *(Case(family=name, mesh=mesh) for name in (*MODELS, *KINDS) for mesh in (DP2EP2, EP2TP2, EP4)),
    *(Case(family=name, mesh=PP2EP2, options={"num_microbatches": 2}) for name in (*MODELS, *KINDS)),
    *(Case(family=name, mesh=EIGHT[0]) for name in ("mixtral", "deepseek-v3", "top-2-capacity")),
    *(Case(family=n, mesh=EIGHT[1], options={"num_microbatches": 2}) for n in ("qwen3-moe", "gpt-oss", "2-top-1")),
    *UNEVEN,
    *NODES,
]


@functools.cache
def launched(world: int, cases: tuple[Case, ...]) -> list[list[Found]]:
    return harness.run_processes(world, harness.each, [(trained, (case,)) for case in cases], timeout_s=280)


def found(case: Case) -> list[Found]:
    """What each rank found: the slow cases of a world and a family share its processes."""
    alike = [other for other in CASES if (other.world, other.family) == (case.world, case.family)]
    cases = (case,) if case is QUICK else tuple(alike)
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
        assert 0 < here <= 1.05 / (ways * cut) * every
        # tp may share whole experts out too, where sending tokens is faster than adding parts of results up
        assert rank.exchanged == case.inside if ways > 1 else rank.exchanged in (None, 0)
        assert min(rank.split.values()) >= 0.95
        assert rank.place[1] == ways * case.mesh.get("dp", 1)
    assert len({rank.place[0] for rank in ranks}) == ranks[0].place[1]


def test_every_kind_of_model_is_trained_on_every_mesh() -> None:
    """Four families and our own layer with both routers, with capacity and without; on 2, 4 and 8 processes."""
    meshes = [tuple(mesh.items()) for mesh in (EP2, EP4, DP2EP2, EP2TP2, PP2EP2)]
    trained_on = {(case.family, tuple(case.mesh.items())) for case in (QUICK, *CASES)}
    assert set(itertools.product((*MODELS, *KINDS), meshes)) <= trained_on
    assert {math.prod(size for _, size in mesh) for _, mesh in trained_on} == {2, 4, 8}
    assert set(KINDS) <= set(LAYERS)
