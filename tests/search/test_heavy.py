"""What is said of a mesh from its experts alone is no more than what any placement there takes, within any memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autopar.arguments import check
from autopar.compiling import ready
from autopar.models import resolve
from autopar.passes import search as searching
from autopar.passes.bounds import Bounds
from autopar.passes.found import UNLIMITED_BYTES, UNREACHABLE_NS, Limits
from autopar.passes.heavy import anchor, rest
from autopar.passes.heavy_bounds import counts_by_mesh
from autopar.passes.outer import Candidate, Rung
from autopar.passes.positions import positions
from autopar.passes.recipes import asked
from autopar.passes.solve import solve
from autopar.passes.standing import Standing

SHARES = (1.0, 0.6, 0.35)  # of what the fastest placement of the mesh holds


def compared(name: str, cluster: str, batch: int, layers: int, step: int) -> Iterator[tuple[Candidate, str, int, int]]:
    """Outer choice, which bound, the bound, and the time of a placement of the outer choice within the same memory."""
    model = resolve(f"zoo:{name}", batch_size=batch, seq_len=128, layers=layers)
    arguments = check(cluster=cluster, name=name, mixed_precision="fp16" if "V100" in cluster else "bf16")
    prepared = ready(model.model, model.example_inputs, arguments).model
    marks = positions(prepared.graph, prepared.rules, prepared.settings.inputs)
    made, candidates = asked(prepared, arguments.cluster, arguments.limits(), marks)
    for number, candidate in enumerate(candidates[::step]):
        bounds = Bounds(
            model=made, cluster=arguments.cluster, profile=arguments.profile, positions=marks,
            memory_bytes=UNLIMITED_BYTES,
        )  # fmt: skip
        counts = candidate.count, *candidate.more
        one = replace(candidate, more=(), count=counts[-1 - number % min(2, len(counts))])
        own = bounds.encode(one, one.schedule)
        if own is None:
            continue
        places = 1 if one.shape is None else one.shape.places
        fastest = solve(own[0].problem, memory_bytes=UNLIMITED_BYTES, effort=0)
        for share in SHARES:
            budget = int(fastest.bytes * share)
            found = solve(own[0].problem, memory_bytes=budget * places, effort=0)
            if not found.found or found.bytes > budget * places:
                continue
            within = replace(bounds, memory_bytes=budget, known={}, exact=set())
            for rung in (Rung.DEVICE, Rung.HEAVY):
                raised = within.raised(replace(one, rung=Rung(rung - 1)))
                assert raised is not None
                yield one, f"{rung.name} in {share}", raised.bound_ns, found.objective_ns
            within.heavy.counts = counts_by_mesh(candidates)
            for least, most in ((one.count, one.count), *within.heavy.runs(one)):
                bound = within.heavy.within_run(one, least, most) or 0
                yield one, f"{least} to {most} in {share}", bound, found.objective_ns
                raised_ns = within.heavy.within_run(one, least, most, UNREACHABLE_NS) or 0
                if raised_ns > bound:
                    yield one, f"{least} to {most} across nodes in {share}", raised_ns, found.objective_ns


@pytest.mark.parametrize(
    ("name", "cluster", "batch", "layers", "step"),
    [
        ("mixtral-8x7b", "2x2xV100-SXM2-32GB@32Gb/s", 8, 2, 5),
        pytest.param("mixtral-8x7b", "2x4xV100-SXM2-32GB@32Gb/s", 16, 2, 5, marks=pytest.mark.slow),
        pytest.param("deepseek-v3", "2x4xH100-SXM", 16, 4, 11, marks=pytest.mark.slow),
        pytest.param("qwen3-30b-a3b", "4x2xH100-SXM", 16, 2, 5, marks=pytest.mark.slow),
        pytest.param("m6-moe-100b", "2x4xV100-SXM2-32GB", 16, 2, 5, marks=pytest.mark.slow),
    ],
)
def test_no_bound_from_experts_is_above_a_placement(
    name: str, cluster: str, batch: int, layers: int, step: int
) -> None:
    found = list(compared(name, cluster, batch, layers, step))
    assert len(found) > 5
    assert [case for case in found if case[2] > case[3]] == []
    assert any(case[2] > 0.5 * case[3] for case in found if "HEAVY" in case[1])
    assert any(case[2] > 0.5 * case[3] for case in found if " to " in case[1])
    assert any("across nodes" in case[1] for case in found)


def short_of_memory(batch: int) -> tuple[Bounds, list[Candidate]]:
    """Of two layers of Mixtral, more than four devices of 5 GB hold however they are split."""
    model = resolve("zoo:mixtral-8x7b", batch_size=batch, seq_len=128, layers=2)
    arguments = check(cluster="1x4xA100-SXM-80GB", name="mixtral", mixed_precision="bf16")
    prepared = ready(model.model, model.example_inputs, arguments).model
    marks = positions(prepared.graph, prepared.rules, prepared.settings.inputs)
    made, candidates = asked(prepared, arguments.cluster, arguments.limits(), marks)
    bounds = Bounds(
        model=made, cluster=arguments.cluster, profile=arguments.profile, positions=marks, memory_bytes=5 * 10**9
    )
    return bounds, candidates


def test_one_problem_rules_out_all_numbers_of_microbatches_that_it_stands_for() -> None:
    """What nothing splits enough does not fit in any number; one microbatch keeps no gradients, and is by itself."""
    bounds, candidates = short_of_memory(batch=64)
    bounds.heavy.counts = counts_by_mesh(candidates)
    one = replace(candidates[0], more=(), rung=Rung.POOLED)
    assert list(bounds.heavy.runs(replace(one, count=16))) == [(2, 64), (16, 64)]
    assert list(bounds.heavy.runs(one)) == []
    for count in (2, 4, 8, 16, 32, 64):
        assert bounds.heavy.bound_ns(replace(one, count=count), 10**9) == UNREACHABLE_NS
    assert bounds.problems == 1


def test_what_stands_for_several_numbers_of_microbatches_is_a_bound_of_each() -> None:
    """Also within memory of which the most need least."""
    bounds, candidates = short_of_memory(batch=64)
    bounds.heavy.counts = counts_by_mesh(candidates)
    reached: set[tuple[bool, bool]] = set()
    for budget in (8 * 10**9, 12 * 10**9, 40 * 10**9):
        within = replace(bounds, memory_bytes=budget, known={}, exact=set())
        within.heavy.counts = bounds.heavy.counts
        for mesh in candidates:
            for count in (mesh.count, *mesh.more):
                one = replace(mesh, more=(), count=count)
                own = within.heavy.within_run(one, count, count)
                runs = [within.heavy.within_run(one, *run) for run in within.heavy.runs(one)]
                if own is not None:
                    assert all(run is not None and run <= own for run in runs)
                    reached.update((own < UNREACHABLE_NS, run == own) for run in runs)
    assert reached >= {(True, True), (True, False), (False, True)}


def test_a_mesh_that_is_slow_in_any_number_of_microbatches_takes_two_problems() -> None:
    """Of one alone, which keeps no gradients from one to the next, and of all others at once."""
    bounds, candidates = short_of_memory(batch=64)
    bounds.heavy.counts = counts_by_mesh(candidates)
    mesh = replace(next(c for c in candidates if c.more), rung=Rung.POOLED)
    state = searching._Search(Standing(bounds, Limits(memory_bytes=bounds.memory_bytes)), lambda _: None, False)
    state.standing.best_ns = 1
    each = state.raised(mesh)
    assert [one.count for one in each] == [mesh.count, *mesh.more]
    before, raised = bounds.problems, [bounds.raised(one, enough_ns=1) for one in each]
    assert all(one is not None and one.rung == Rung.HEAVY and one.bound_ns >= 1 for one in raised)
    assert len(each) > 2
    assert bounds.problems == before + 2


def test_experts_that_nothing_splits_enough_are_ruled_out_without_a_problem_of_the_whole() -> None:
    bounds, candidates = short_of_memory(batch=8)
    one = replace(candidates[0], more=(), rung=Rung.POOLED)
    assert one.mesh.names == ("tp",)
    assert bounds.heavy.bound_ns(one) == UNREACHABLE_NS
    assert bounds.problems == 1
    raised = bounds.raised(one)
    assert raised is not None
    assert (raised.rung, raised.bound_ns, bounds.problems) == (Rung.HEAVY, UNREACHABLE_NS, 1)


def test_few_microbatches_tell_what_all_else_takes_in_many() -> None:
    """Never more than their own problem says, and hardly less: of a mixture on one device, by way to recompute."""
    model = resolve("zoo:mixtral-8x7b", batch_size=96, seq_len=256, layers=2)
    arguments = check(cluster="2x4xA100-SXM-80GB", name="mixtral-8x7b", mixed_precision="bf16")
    prepared = ready(model.model, model.example_inputs, arguments).model
    marks = positions(prepared.graph, prepared.rules, prepared.settings.inputs)
    bounds = Bounds(
        model=prepared, cluster=arguments.cluster, profile=arguments.profile, positions=marks,
        memory_bytes=UNLIMITED_BYTES,
    )  # fmt: skip
    heavy, one = bounds.heavy, bounds.alone("dp", 1)
    alone = bounds.model_for(None, pooled=True, alone=True)
    for count in (1, 2, 4, 8, 12, 16, 32, 48, 96):
        few = heavy.beside(count)
        own = rest(alone, bounds.ground(alone, replace(one, count=count), inner=False), count, heavy.kept)
        assert few is not None and few.keys() == own.keys()
        for graph, known in own.items():
            assert few[graph].microbatches == anchor(count)
            for name, modes in known.parameters.items():
                for mode in modes:
                    told, true = (each[graph].share(name, mode, 1, count, count) for each in (few, own))
                    assert told <= true, (count, graph, mode, name)
                    assert told >= 0.9 * true or name != "sync_ns", (count, graph, mode)


def test_one_microbatch_is_a_case_of_its_own() -> None:
    for count in range(1, 200):
        assert count % anchor(count) == 0
        assert (anchor(count) == 1) == (count == 1)
        assert anchor(anchor(count)) == anchor(count)
    assert len({anchor(1 << n) for n in range(12)}) == 5
