"""What nodes and edges cost in each mode, worked out for many at once."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from autopar.passes.by_mode import Modes, Plain
from autopar.passes.candidate import Mode
from autopar.passes.problem import FORBIDDEN, IntArray, Table
from autopar.passes.upkeep import Kept

MODES = [
    Mode(recompute, zero, inside)
    for recompute in ("none", "selective", "full") for zero, inside in ((0, ()), (2, ()), (3, (("dp", 2),)))
]  # fmt: skip
MODE = 7  # the variable


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def tables(*plains: Plain, microbatches: int = 4) -> list[Table]:
    return Modes(MODES, microbatches, 0.5, piped=False).tables(plains, MODE)


def node(*, dear: bool, keeps: IntArray | None = None) -> Plain:
    return Plain(
        variables=(1,), node=True, dear=dear, forward_ns=ints(10, 30), backward_ns=ints(20, 60), saved=ints(100, 50),
        keeps=keeps, passing=ints(3, 0), aside_ns=(ints(8, 0), ints(4, 2)),
    )  # fmt: skip


def edge(*, kept: Kept | None = None, aside: bool = True) -> Plain:
    return Plain(
        variables=(1, 2), node=False, dear=True, forward_ns=ints(5, FORBIDDEN)[:, None],
        backward_ns=ints(7, 0)[:, None], saved=ints(16, 0)[:, None], keeps=ints(4, 0)[:, None],
        aside_ns=(ints(5, 0)[:, None],) * 2 if aside else None, kept=kept,
    )  # fmt: skip


def keeping() -> Kept:
    numbers = np.arange(2 * len(MODES), dtype=np.int64).reshape(2, 1, len(MODES))
    return Kept(**{field.name: numbers + n for n, field in enumerate(fields(Kept))})


def by_mode(table: Table, name: str, at: tuple[int, ...]) -> dict[str, int]:
    return {str(mode): int(getattr(table, name)[(*at, k)]) for k, mode in enumerate(MODES)}


def test_full_recomputation_runs_all_again_and_selective_what_is_cheap() -> None:
    cheap, dear = tables(node(dear=False), node(dear=True))
    for table, selective in ((cheap, 2), (dear, 1)):
        again = {"none": 1, "selective": selective, "full": 2}
        assert table.variables == (1, MODE)
        expected = {str(mode): 4 * (10 * again[mode.recompute] + 20) for mode in MODES}
        assert by_mode(table, "sync_ns", (0,)) == expected


def test_what_is_dropped_is_held_while_the_block_runs_backward() -> None:
    cheap, dear, inner = tables(node(dear=False), node(dear=True), node(dear=True, keeps=ints(40, 0)))
    assert [by_mode(cheap, "bytes", (0,))[str(mode)] for mode in MODES[::3]] == [100, 0, 0]
    assert [by_mode(cheap, "transient_bytes", (0,))[str(mode)] for mode in MODES[::3]] == [3, 103, 103]
    assert [by_mode(dear, "transient_bytes", (0,))[str(mode)] for mode in MODES[::3]] == [3, 3, 103]
    assert [by_mode(inner, "bytes", (0,))[str(mode)] for mode in MODES[::3]] == [100, 40, 0]


def test_nodes_cover_traffic_in_part_and_edges_beside_it_unless_nodes_are_split_inside() -> None:
    of_node, of_edge = tables(node(dear=True), edge())
    assert by_mode(of_node, "cover_ns", (0,))["recompute=full,zero=2"] == 6  # half of 8 again and 4
    assert by_mode(of_node, "earlier_ns", (0,))["recompute=none,zero=2"] == -2 * 3
    assert by_mode(of_node, "ahead_ns", (0,))["recompute=none,zero=3,inside dp=2"] == -4 * 4
    assert by_mode(of_edge, "cover_ns", (0, 0))["recompute=none,zero=2"] == 5
    assert by_mode(of_edge, "cover_ns", (0, 0))["recompute=none,zero=3,inside dp=2"] == 0


def test_a_parameters_keeping_is_added_and_what_is_forbidden_stays_so() -> None:
    kept = keeping()
    (table,) = tables(edge(kept=kept))
    assert by_mode(table, "sync_ns", (0, 0))["recompute=none,zero=0"] == 4 * 12 + int(kept.sync_ns[0, 0, 0])
    assert set(by_mode(table, "sync_ns", (1, 0)).values()) == {FORBIDDEN}
    assert table.hide_ns is not None and (table.hide_ns == kept.hide_ns).all()
    assert by_mode(table, "saved_bytes", (0, 0))["recompute=none,zero=0"] == 16


@pytest.mark.parametrize("microbatches", [1, 4])
def test_each_is_what_it_would_be_alone(microbatches: int) -> None:
    plains = [node(dear=False), edge(kept=keeping()), edge(aside=False), node(dear=True, keeps=ints(40, 0)), edge()]
    together = tables(*plains, microbatches=microbatches)
    for plain, found in zip(plains, together, strict=True):
        (alone,) = tables(plain, microbatches=microbatches)
        for field in fields(Table):
            assert _same(getattr(found, field.name), getattr(alone, field.name)), field.name


def _same(one: Any, other: Any) -> bool:
    return one == other if one is None or isinstance(one, tuple) else bool(np.array_equal(one, other))
