"""What a segment costs with so many microbatches in flight, from that of one, and of several numbers or prices in one
walk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopar.passes.problem import Segment, Table
from autopar.passes.solve import eliminate, scheme, selection
from autopar.passes.solve.eliminate import Eliminator, Prices, assigned, holding, tables
from tests.solve.instances import random_segment
from tests.solve.test_selection import segment as selecting

PRICES = Prices(time=1.0, hidden=0.5, earlier=0.375, ahead=0.3, held=0.25, transient=0.125)
LIVES = (1, 3, 8)


def saving(segment: Segment, rng: np.random.Generator) -> Segment:
    """With a random part of all bytes kept for each microbatch."""

    def kept(table: Table) -> Table:
        return table if table.bytes is None else replace(table, saved_bytes=rng.integers(0, table.bytes + 1))

    return replace(segment, tables=tuple(map(kept, segment.tables)))


def with_live(segment: Segment, live: int) -> Segment:
    return replace(segment, tables=tuple(
        table if table.bytes is None or table.saved_bytes is None
        else replace(table, bytes=table.bytes + (live - 1) * table.saved_bytes) for table in segment.tables
    ))  # fmt: skip


@pytest.mark.parametrize("way", ["at once", "one value at a time", "conditioned"])
@pytest.mark.parametrize("seed", range(8))
def test_numbers_in_flight_follow_from_one(seed: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    if way == "one value at a time":
        monkeypatch.setattr(eliminate, "AT_ONCE", 0)
    segment = saving(random_segment(rng, "some", (3, 4, 2, 3, 4), forbidden=0.05), rng)
    compared(segment, (0, 4), 1 if way == "conditioned" else eliminate.CAP_ENTRIES)


@pytest.mark.parametrize("seed", range(8))
def test_so_they_do_where_variables_are_selected(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(scheme, "KEPT_ENTRIES", -1)  # what is kept was made with the other limit
    monkeypatch.setattr(selection, "FEWEST_ENTRIES", 0)
    made = compared(saving(selecting(rng, negative=False), rng), (0, 4), eliminate.CAP_ENTRIES)
    assert any(bucket.selection is not None for bucket in made.plan.buckets)


def compared(segment: Segment, kept: tuple[int, ...], cap_entries: int) -> Eliminator:
    one = Eliminator(segment, kept=kept, cap_entries=cap_entries)
    assert bool(one.children) == (cap_entries == 1)
    each = tables([holding(one, live) for live in LIVES], PRICES)
    for live, found in zip(LIVES, each, strict=True):
        anew = Eliminator(with_live(segment, live), kept=kept, cap_entries=cap_entries).run(PRICES).table
        assert np.array_equal(found, anew)
        assert np.isfinite(found).any()
    assert not np.array_equal(each[0], each[-1])
    prices = [replace(PRICES, held=held) for held in (0.0, 0.25, 8.0)]
    asked = np.indices([segment.domains[v] for v in kept]).reshape(len(kept), -1)
    alone = [one.run(price).assign(asked) for price in prices]
    assert np.array_equal(assigned(one, prices, asked), alone)
    assert not np.array_equal(alone[0], alone[-1])
    return one
