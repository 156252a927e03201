"""Pipelines with more microbatches, bounded by the problem of one with few."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from autopar.ir.mesh import Mesh
from autopar.passes.bounds import Bounds
from autopar.passes.ends import Ends
from autopar.passes.found import Limits
from autopar.passes.heavy_bounds import counts_by_mesh
from autopar.passes.outer import Candidate, of_mesh
from autopar.passes.piped import Pipelines
from autopar.passes.problem import Segment, Table
from autopar.passes.solve import Costs, undivided_bound_ns
from autopar.passes.staging import Staging
from autopar.passes.standing import Standing
from tests.search.staged import CASES, pipelines

RUNS = [range(1), range(1, 3), range(3, 4)]
TIGHT = 100 << 30
SHARES = (1 << 60, 30 << 30, 12 << 30, 6 << 30)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("name", CASES)
def test_fewer_microbatches_bound_more(name: str, schedule: str) -> None:
    """No higher than their own bound by the same means, and half as high or more somewhere."""
    bounds, known = pipelines(name, schedule)
    fewest, *more = [staging(bounds, pipeline) for pipeline in known]
    closest = 0.0
    for memory in SHARES:
        bounds.memory_bytes = memory
        itself = fewest.places(RUNS, [fewest.shape.microbatches])
        assert undivided_bound_ns(itself) == undivided_bound_ns(fewest.places(RUNS))
        for one in more:
            own, shared = (
                undivided_bound_ns(places, bare=True)
                for places in (one.places(RUNS), fewest.places(RUNS, [one.shape.microbatches]))
            )
            assert shared <= own
            closest = max(closest, shared / own if own else 0.0)
    assert closest > 0.5


@pytest.mark.parametrize("name", CASES)
def test_the_most_microbatches_of_a_run_bound_all_of_it(name: str) -> None:
    """What they hold, and what the fewest of them send; worked out one after the other as if each stood alone."""
    bounds, (first, *more) = pipelines(name, "1f1b")
    fewest, counts = staging(bounds, first), [each.count for each in more]
    told = 0
    for memory in SHARES:
        bounds.memory_bytes = memory
        costs = Costs(fewest.places(RUNS, counts), bare=True)
        for least, most in itertools.combinations_with_replacement(counts, 2):
            run = fewest.places(RUNS, (least, most))
            costs = costs.like(run)
            bound, anew = costs.undivided_ns(), Costs(run, bare=True)
            anew.steep = costs.steep
            assert bound == anew.undivided_ns()
            for count in (each for each in counts if least <= each <= most):
                assert bound <= costs.like(fewest.places(RUNS, [count])).undivided_ns()
                told += bound > 0
    assert told


def test_the_ends_hold_what_is_in_flight() -> None:
    """What stands before the first call is held as often as microbatches are in flight there."""
    table = Table(
        variables=(0,), sync_ns=np.array([1, 2]), bytes=np.array([10, 20]), saved_bytes=np.array([3, 4]),
        transient_bytes=np.array([0, 0]),
    )  # fmt: skip
    part, nothing = (Segment(name="part", domains=(2,), tables=own) for own in ((table,), ()))
    known = Ends(before=part, behind=part, again=(nothing, nothing))
    for place, live, held in ((0, 4, (19, 32)), (3, 1, (10, 20)), (0, 0, (7, 16))):
        found = known.of(place, 4, live)
        size = found[0].tables[0].bytes
        assert len(found) == 2 and found[0] is found[1] and size is not None and tuple(size) == held
    assert known.of(2, 4, 2) == (nothing, nothing)


@pytest.mark.parametrize("name", CASES)
def test_the_head_leaves_less_for_calls_with_a_microbatch_in_flight(name: str) -> None:
    bounds, (first, *_) = pipelines(name, "1f1b")
    here = staging(bounds, first)

    def standing(counts: list[int]) -> list[int]:
        places = here.places(RUNS, counts)
        costs = Costs(places)
        return [at.memory_bytes - costs.room_bytes(s)[0] for s, at in enumerate(places)]

    for place, (any_many, own) in enumerate(zip(standing([2 * first.count]), standing([]), strict=True)):
        assert own > any_many if place == 2 else own >= any_many
    assert standing([first.count]) == standing([])


def test_numbers_that_are_no_multiples_are_bounded_by_none() -> None:
    """What is legal with them may not be so with the fewest."""
    full, counts = Mesh((("pp", 4), ("dp", 2))), (4, 6, 8, 16)
    known = [*of_mesh(full, counts, "1f1b")]
    heavy = SimpleNamespace(counts={(full.axes, "1f1b"): counts})
    standing = SimpleNamespace(bounds=SimpleNamespace(heavy=heavy), best_ns=1e6)
    pipes = Pipelines(cast(Standing, standing))
    assert known[0].shape is not None
    pipes.alike[full.axes, known[0].shape] = {16: 2_500_000, 8: 3_200_000}
    found = [pipes.shared(one, one.shape) for one in known if one.shape is not None]
    assert tuple(one.bound_ns for one in found if one is not None) == (0, 0, 3_200_000, 2_500_000)


@pytest.mark.parametrize(("name", "told"), [("deepseek-v3", True), ("llama3-8b", False)])
def test_the_fewest_microbatches_of_a_mixture_are_bounded_beside_all_others(name: str, told: bool) -> None:
    """As closely as by their own problem, without another one; no plan takes less, where memory costs time."""
    bounds, known = pipelines(name, "1f1b")
    bounds.memory_bytes, bounds.heavy.counts = TIGHT, counts_by_mesh(known)
    standing, fewest = Standing(bounds, Limits(memory_bytes=TIGHT)), known[0]
    pipes = Pipelines(standing)
    assert fewest.shape is not None
    before = bounds.problems
    shared = pipes.shared(fewest, fewest.shape)
    assert bounds.problems == before + 1
    staged = pipes.staged(fewest, fewest.shape)
    assert shared is not None and staged is not None
    assert shared.bound_ns > 0.99 * staged.bound_ns if told else shared.bound_ns == 0
    assert pipes.settle(fewest, fewest.shape) and standing.best is not None
    assert shared.step_bound_ns <= standing.best.objective_ns


@pytest.mark.parametrize("name", CASES)
def test_what_each_further_microbatch_adds_is_told(name: str) -> None:
    """With gradients to be added up more microbatches take longer, from the problem of the fewest too, and no longer
    than in their own."""
    bounds, (first, *more) = pipelines(name, "1f1b")
    bounds.memory_bytes, fewest = 1 << 60, staging(bounds, first)
    counts = [each.count for each in more]
    own, alone = (
        [undivided_bound_ns(places, bare=True) for places in each]
        for each in ([staging(bounds, one).places(RUNS) for one in more], [fewest.places(RUNS, [n]) for n in counts])
    )
    together = [undivided_bound_ns(fewest.places(RUNS, (counts[0], n)), bare=True) for n in counts]
    assert all(few < many for few, many in itertools.pairwise(alone))
    assert all(0.65 * most < least <= most for least, most in zip(alone, own, strict=True))
    assert together == [alone[0]] * len(counts)


def staging(bounds: Bounds, pipeline: Candidate) -> Staging:
    made = bounds.encode(pipeline, pipeline.schedule)
    assert made is not None and pipeline.shape is not None
    return Staging(bounds, *made, pipeline.shape)
