"""A variable that others only select from is eliminated class by class, with the answer that joining all has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autopar.passes.problem import FORBIDDEN, IntArray, Segment, Table
from autopar.passes.solve import scheme, selection
from autopar.passes.solve.eliminate import Eliminator, Prices

PRICES = Prices(time=1.0, hidden=0.5, earlier=0.375, ahead=0.3, held=0.25, transient=0.125)


def sets(rng: np.random.Generator, layouts: int, consumers: int) -> tuple[list[tuple[int, ...]], list[IntArray]]:
    """Every set of up to ``consumers`` layouts, and which layout each of a consumer's entries asks for."""
    groups = [g for n in range(1, consumers + 1) for g in itertools.combinations(range(layouts), n)]
    return groups, [rng.integers(0, layouts, int(rng.integers(7, 11))) for _ in range(consumers)]


def segment(rng: np.random.Generator, *, negative: bool) -> Segment:
    """A producer (0), the sets it may be held in (1) and consumers that need one of them each."""
    groups, needs = sets(rng, 5, 3)
    domains = (4, len(groups), *(len(need) for need in needs))
    low = -20 if negative else 0
    shape = (4, len(groups))
    tables = [Table(variables=(0, 1), sync_ns=rng.integers(low, 50, shape), bytes=rng.integers(0, 9, shape))]
    for number, need in enumerate(needs):
        inside = np.array([[layout in group for layout in need] for group in groups])
        inside &= rng.random(inside.shape) < 0.9  # some sets do not serve, and at times none does
        tables.append(Table(variables=(1, 2 + number), sync_ns=np.where(inside, 0, FORBIDDEN)))
        tables.append(Table(variables=(2 + number,), sync_ns=rng.integers(0, 30, len(need))))
    tables.append(Table(variables=(2, 3), sync_ns=rng.integers(0, 30, (domains[2], domains[3]))))
    return Segment(name="held", domains=domains, tables=tuple(tables))


@pytest.mark.parametrize("seed", range(30))
def test_the_message_is_that_of_joining_everything(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    held = segment(rng, negative=bool(seed % 2))
    kept = (0, 4) if seed % 3 else (0, 4, 2, 3)
    monkeypatch.setattr(scheme, "KEPT_ENTRIES", -1)  # what is kept was made with the other limit
    monkeypatch.setattr(selection, "FEWEST_ENTRIES", 0)
    by_class = Eliminator(held, kept=kept)
    used = any(bucket.selection is not None for bucket in by_class.plan.buckets)
    assert used or seed % 3
    monkeypatch.setattr(selection, "FEWEST_ENTRIES", 1 << 40)
    joined = Eliminator(held, kept=kept)
    assert all(bucket.selection is None for bucket in joined.plan.buckets)
    assert not used or by_class.plan.entries < joined.plan.entries
    one, other = by_class.run(PRICES), joined.run(PRICES)
    assert np.allclose(one.table, other.table)
    assert np.isfinite(one.table).any()
    states = np.stack([row.reshape(-1) for row in np.indices(one.table.shape)])[:, np.isfinite(one.table).reshape(-1)]
    full = one.assign(states)
    cost = by_class.plan.measure(full)
    prices = (PRICES.time, PRICES.hidden, PRICES.earlier, PRICES.ahead, PRICES.held, PRICES.transient)
    priced = sum(number * price for number, price in zip(cost, prices, strict=True))
    assert np.allclose(priced, one.table[tuple(states)])


def test_a_table_with_costs_is_no_selection() -> None:
    free = np.array([[0, FORBIDDEN], [FORBIDDEN, 0]])
    assert selection.is_pure(Table(variables=(0, 1), sync_ns=free))
    assert not selection.is_pure(Table(variables=(0, 1), sync_ns=free + 1))
    assert not selection.is_pure(Table(variables=(0, 1), sync_ns=np.zeros((2, 2), dtype=np.int64)))
    # nothing is held now, but with more microbatches in flight there may be
    assert not selection.is_pure(Table(variables=(0, 1), sync_ns=free, bytes=np.zeros((2, 2), dtype=np.int64)))
