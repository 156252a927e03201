"""HSDP in the search: where it is offered, what it costs, what the plan says of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import autopar
from autopar.ir.errors import FileFormatError, MismatchError
from autopar.ir.plan import Plan
from autopar.passes.assignment import from_plan, to_plan
from autopar.passes.hybrid import cut_inside
from autopar.passes.pricing import Pricing
from autopar.passes.storage import reductions
from tests.models import gpt2, inputs
from tests.parity import planned

FAIR = str(Path(__file__).parents[1] / "networks" / "fair.toml")
SLOW = "2x2xCPU@10Gb/s"


@functools.cache
def _plan(mesh: tuple[tuple[str, int], ...], cluster: str, options: tuple[tuple[str, Any], ...]) -> Plan:
    return autopar.plan(gpt2(), inputs("gpt2"), mesh=dict(mesh), cluster=cluster, profile=FAIR, **dict(options))


def plan(mesh: Mapping[str, int], cluster: str = SLOW, **options: Any) -> Plan:
    return _plan(tuple(mesh.items()), cluster, tuple(options.items()))


@pytest.mark.parametrize("count", [1, 2])
def test_parameters_that_are_gathered_again_and_again_stay_inside_nodes(count: int) -> None:
    """Over a slow network; nothing but a part of the gradients crosses it, once a step, and the step is shorter."""
    found = plan({"dp": 4}, zero=3, num_microbatches=count)
    assert found.hsdp["block0"] == {"dp": 2}
    kinds = {(c.kind, c.axis, c.phase, c.count) for c in found.collectives if c.where == "block0" and c.bytes == 16384}
    weights = 4  # of equal size, in two layers
    assert kinds == {
        *(("all_gather", "dp.inside", phase, weights * count) for phase in ("forward", "backward")),
        ("all_reduce", "dp.across", "grad", weights),
    }  # fmt: skip
    with mock.patch.object(Pricing, "inside", ()):
        over_all = autopar.plan(
            gpt2(), inputs("gpt2"), mesh={"dp": 4}, cluster=SLOW, profile=FAIR, zero=3, num_microbatches=count
        )
    assert not over_all.hsdp
    assert found.objective_s < 0.95 * over_all.objective_s
    assert found.memory.parts["parameters"] > 1.3 * over_all.memory.parts["parameters"]
    assert "hsdp" not in over_all.document()


def test_the_plan_says_among_whom_a_parameter_is_cut() -> None:
    found = plan({"dp": 4}, zero=3, num_microbatches=2)
    weights = [at for name, at in found.storage.items() if name.endswith("mlp.c_fc.weight")]
    assert weights == [{"dp": "S(0) in 2s"}]


@pytest.mark.parametrize(
    ("mesh", "cluster", "options"),
    [
        ({"dp": 4}, "1x4xCPU", {"zero": 3}),
        ({"dp": 4}, "4x1xCPU@10Gb/s", {"zero": 3}),
        ({"dp": 2, "tp": 2}, SLOW, {"zero": 3}),
        ({"dp": 4}, SLOW, {"zero": 1, "num_microbatches": 2}),
        ({"dp": 4}, SLOW, {"zero": 0}),
        ({"pp": 2, "dp": 4}, "2x4xCPU@10Gb/s", {"zero": 3, "schedule": "1f1b", "num_microbatches": 2}),
    ],
    ids=["one node", "one device a node", "tp fills a node", "level 1", "level 0", "pipeline"],
)  # fmt: skip
def test_where_it_saves_nothing_it_is_not_offered(
    mesh: dict[str, int], cluster: str, options: dict[str, Any]
) -> None:
    assert not plan(mesh, cluster, **options).hsdp


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cluster", [SLOW, pytest.param("2x2xCPU@100Gb/s", marks=pytest.mark.slow)])
def test_the_lower_bound_holds_for_plans_with_hsdp(cluster: str, count: int) -> None:
    """The bound leaves out modes that only save memory; no plan that pins a level is faster than it."""
    bound = plan({"dp": 4}, cluster, num_microbatches=count).lower_bound_s
    for zero in (0, 1, 2, 3):
        assert plan({"dp": 4}, cluster, num_microbatches=count, zero=zero).objective_s >= bound


def test_two_axes_are_cut_inside_and_added_up_across() -> None:
    """Sizes shrink with every axis that gathers; what crosses nodes is a part."""
    size = {"dp": 4, "cp": 6}.__getitem__
    inside = cut_inside((("dp", 2), ("cp", 3)), ("dp", "cp"), size)
    found = list(reductions(("dp", "cp"), 24, 48, size, 3, 5, root=False, inside=inside))
    assert found == [
        ("all_gather", "dp.inside", 12, "forward", 5), ("all_gather", "dp.inside", 12, "backward", 5),
        ("reduce_scatter", "dp.inside", 48, "grad", 5),
        ("all_gather", "cp.inside", 4, "forward", 5), ("all_gather", "cp.inside", 4, "backward", 5),
        ("reduce_scatter", "cp.inside", 24, "grad", 5),
        ("all_reduce", "dp.across", 8, "grad", 1), ("all_reduce", "cp.across", 8, "grad", 1),
    ]  # fmt: skip


def test_an_axis_that_is_all_inside_or_all_across_is_cut_as_ever() -> None:
    size = {"dp": 4, "cp": 2}.__getitem__
    inside = (("dp", 1), ("cp", 2))
    assert cut_inside(inside, ("dp", "cp"), size) == (1, 2)
    assert cut_inside(inside, ("dp",), size) == cut_inside(inside, ("cp",), size) == ()


def test_a_plan_with_hsdp_reads_back() -> None:
    """From its bytes, and its assignment from text."""
    found = plan({"dp": 4}, zero=3, num_microbatches=2)
    again = Plan.from_bytes(found.to_bytes())
    assert (again.hsdp, again.assignment, again.sha256) == (found.hsdp, found.assignment, found.sha256)
    assert 2 in {variant.inside.get("dp") for variant in again.assignment.variants}


def changed(found: Plan, **update: Any) -> bytes:
    """The plan with other words in its file, and the hash that they have."""
    document = found.document() | update
    variants = [{**variant, **update.get("variant", {})} for variant in document["assignment"]["variants"]]
    document["assignment"] = {**document["assignment"], "variants": variants}
    document.pop("variant", None)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"schedule": "1f1b"}, "is cut inside nodes .HSDP. under schedule 1f1b"),
        ({"variant": {"inside": {"dp": 3}}}, "is cut among 3 neighbours along dp, of which the mesh has 4"),
        ({"variant": {"inside": {"dp": 0}}}, "greater than or equal to 1"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_when_it_is_read(update: dict[str, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        Plan.from_bytes(changed(plan({"dp": 4}, zero=3, num_microbatches=2), **update))


def test_an_axis_that_cuts_no_storage_is_refused() -> None:
    found = planned.planned(planned.Case(model="gpt2", mesh="dp=2,tp=2"))
    data = to_plan(found.assignment)
    variants = tuple(variant.model_copy(update={"inside": {"tp": 2}}) for variant in data.variants)
    with pytest.raises(MismatchError, match="along tp, which is no data axis"):
        from_plan(data.model_copy(update={"variants": variants}), found.model, found.assignment.mesh)
