"""The parts of the solver against direct computation."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from autopar.ir.errors import IRError, LimitReachedError
from autopar.passes.problem import FORBIDDEN, Chain, Problem, Segment, Table, verify_problem
from autopar.passes.solve.chain import min_plus, power, through
from autopar.passes.solve.check import measure_assignment
from autopar.passes.solve.eliminate import Eliminator, Prices
from autopar.passes.solve.euler import euler_runs, unreached
from autopar.passes.solve.order import elimination_order
from autopar.passes.solve.plan import BYTES, SYNC, make_plan
from tests.solve.instances import random_segment

PRICES = Prices(time=1.0, hidden=0.5, held=0.25, transient=0.125)


def slow_power(table: np.ndarray, count: int) -> np.ndarray:
    result = table
    for _ in range(count - 1):
        result = min_plus(result, table)
    return result


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_power_is_the_repeated_product_and_its_path_costs_that_much(count: int) -> None:
    rng = np.random.default_rng(count)
    table = rng.integers(0, 50, (2, 3, 3)).astype(np.float64)
    whole = power(table, count)
    assert np.array_equal(whole.table, slow_power(table, count))
    for s, a, b in itertools.product(range(2), range(3), range(3)):
        steps = whole.path(s, a, b)
        assert sum(n for n, _, _ in steps) == count
        assert (steps[0][1], steps[-1][2]) == (a, b)
        assert all(p[2] == q[1] for p, q in itertools.pairwise(steps))
        assert sum(n * table[s, p, q] for n, p, q in steps) == whole.table[s, a, b]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 9])
def test_through_is_the_best_rest_over_all_positions_of_one_call(count: int) -> None:
    rng = np.random.default_rng(count)
    table, rest = rng.integers(0, 50, (2, 2, 3, 3)).astype(np.float64)
    never = np.where(np.eye(3, dtype=bool), 0.0, np.inf)[None].repeat(2, axis=0)
    powers = [never, *(slow_power(table, n) for n in range(1, count + 1))]
    back = np.swapaxes(rest, 1, 2)
    expected = np.min(
        [min_plus(min_plus(powers[count - 1 - j], back), powers[j]) for j in range(count)], axis=0
    )
    assert np.array_equal(through(table, rest, count), expected)


@pytest.mark.parametrize("seed", range(20))
def test_elimination_finds_the_least_sum_and_an_assignment_that_has_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segment = random_segment(rng, "s", (3, 6, 6, 2, 6), mode=4 if seed % 2 else None)
    cost = np.zeros(segment.domains)
    for table in segment.tables:
        here = Eliminator(Segment(name="t", domains=segment.domains, tables=(table,)), kept=range(5))
        cost = cost + here.run(PRICES).table
    kept = (3, 0)
    expected = cost.min(axis=(1, 2, 4)).T
    plain = Eliminator(segment, kept=kept)
    branched = Eliminator(segment, kept=kept, cap_entries=1)
    pivoted = [Eliminator(segment, kept=kept, cap_entries=1, pivot=pivot) for pivot in kept]
    states = np.indices((2, 3)).reshape(2, 6)
    for eliminator in (plain, branched, *pivoted):
        run = eliminator.run(PRICES)
        assert np.allclose(run.table, expected)
        full = run.assign(states)
        assert np.array_equal(full[list(kept)], states)
        assert np.allclose(cost[tuple(full)], expected.reshape(-1))
    assert branched.children
    assert [len(eliminator.children) for eliminator in pivoted] == [segment.domains[v] for v in kept]


@pytest.mark.parametrize("seed", range(10))
def test_a_scheme_serves_all_segments_with_the_same_scopes(seed: int) -> None:
    """Its tables hold what those of the segment at hand add up to, not what they did when it was made."""
    rng = np.random.default_rng(seed)
    first, other = (random_segment(np.random.default_rng(7), "s", (3, 6, 1, 2, 6), mode=None) for _ in range(2))
    tables = tuple(
        replace(table, bytes=rng.integers(0, 99, table.sync_ns.shape), sync_ns=table.sync_ns + int(rng.integers(1, 9)))
        for table in other.tables
    )
    other = Segment(name="o", domains=other.domains, tables=tables)
    kept = (0, 3)
    one, two = make_plan(first, kept=kept), make_plan(other, kept=kept)
    assert one.buckets is two.buckets
    states = rng.integers(0, first.domains, (50, 5)).T
    for segment, plan in ((first, one), (other, two)):
        at = [tuple(states[list(table.variables)]) for table in segment.tables]
        time = np.sum([table.sync_ns[index] for table, index in zip(segment.tables, at, strict=True)], axis=0)
        held = np.sum(
            [np.zeros(50) if t.bytes is None else t.bytes[i] for t, i in zip(segment.tables, at, strict=True)], axis=0
        )
        allowed = time < FORBIDDEN
        assert allowed.any()
        assert np.array_equal(plan.measure(states)[[SYNC, BYTES]][:, allowed], np.stack([time, held])[:, allowed])


def test_a_table_over_too_many_boundary_values_is_refused_with_a_way_out() -> None:
    segment = Segment(name="wide", domains=(200, 200, 200, 200), tables=())
    with pytest.raises(LimitReachedError, match="segment wide: a table over its boundary would hold"):
        Eliminator(segment, kept=(0, 1, 2, 3))


def test_variable_tied_to_all_others_is_eliminated_last() -> None:
    scopes = (*((v, v + 1) for v in range(8)), *((v, 9) for v in range(9)))
    assert 9 in elimination_order((*[5] * 9, 4), scopes, ())[-2:]


def test_counts_become_one_path_that_walks_every_arc_that_often() -> None:
    start, end = np.array([0, 1, 1, 0, 2]), np.array([1, 0, 1, 2, 2])
    counts = np.array([3, 3, 40, 1, 5])
    assert unreached(start, end, counts, 0) == []
    runs = euler_runs(start, end, counts, 0)
    walked = np.zeros(5, dtype=np.int64)
    at = 0
    for repeat, arc in runs:
        assert start[arc] == at
        assert repeat == 1 or start[arc] == end[arc]
        at = int(end[arc])
        walked[arc] += repeat
    assert walked.tolist() == counts.tolist()


def test_a_loop_apart_from_the_path_is_found() -> None:
    start, end = np.array([0, 3, 4]), np.array([1, 4, 3])
    assert unreached(start, end, np.array([1, 2, 2]), 0) == [3, 4]


def chain_of_two() -> Problem:
    sync = np.array([[1, 5], [5, 1]])
    block = Segment(name="b", domains=(2, 2), tables=(Table(variables=(0, 1), sync_ns=sync),))
    root = Segment(name="r", domains=(2, 2), tables=(Table(variables=(0,), sync_ns=np.array([0, 1 << 54])),))
    chain = Chain(segment=block, count=2, inputs=(0,), outputs=(1,), root_inputs=(0,), root_outputs=(1,))
    return Problem(root=root, chains=(chain,))


@pytest.mark.parametrize(
    ("root", "runs", "message"),
    [
        ((1, 0), ((2, (1, 1)),), "forbids"),
        ((0, 0), ((3, (0, 0)),), "3 calls assigned, expected 2"),
        ((0, 0), ((1, (1, 0)), (1, (0, 0))), "inputs differ"),
        ((0, 1), ((2, (0, 1)),), "repeated, but its outputs"),
        ((0, 1), ((2, (0, 0)),), "last outputs"),
        ((0, 2), ((2, (0, 0)),), "variable 1 has value 2 of 2"),
    ],
)
def test_checker_refuses_what_is_not_an_assignment(
    root: tuple[int, ...], runs: tuple[tuple[int, tuple[int, ...]], ...], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        measure_assignment(chain_of_two(), root, (runs,))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (Table(variables=(0, 0), sync_ns=np.zeros((2, 2), np.int64)), "different variables"),
        (Table(variables=(2,), sync_ns=np.zeros(2, np.int64)), "variables 0 to 1"),
        (Table(variables=(0,), sync_ns=np.zeros(3, np.int64)), "expected int64"),
        (Table(variables=(0,), sync_ns=np.zeros(2)), "sync_ns is float64"),  # type: ignore[arg-type]
        (
            Table(variables=(0,), sync_ns=np.zeros(2, np.int64), cover_ns=np.array([0, -1])),
            "cover_ns goes from -1 to 0",
        ),
    ],
)
def test_malformed_tables_are_named(table: Table, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify_problem(Problem(root=Segment(name="r", domains=(2, 3), tables=(table,))))
