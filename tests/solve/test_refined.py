"""The bound of stages of which each has few calls: no higher than any cut, and exact where two layouts differ much."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopar.passes.problem import Chain, Problem, Segment, Table
from autopar.passes.solve import Model, Places, refined, refined_bound_ns, staged_bound_ns
from autopar.passes.solve.staged import Costs

# By chain: of a call by mode and layout time, bytes and bytes in passing; how many calls there are.
Option = tuple[int, int, int]
Stack = tuple[Sequence[Sequence[Option]], int]
ENOUGH = 10**9


@pytest.fixture(autouse=True)
def however_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices of modes are worked out however far a bound is from what is enough."""
    monkeypatch.setattr(refined, "NEARLY", 0.0)


def test_a_call_is_in_one_layout() -> None:
    """Two fast calls take 120 bytes, two lean ones 40: a place with 100 has one of each, in 300 ns; a price of memory
    lets it have half of one more."""
    stacks: list[Stack] = [([[(100, 60, 0), (200, 20, 0)]], 4)]
    low, found = bounds_ns(stacks, (110, 110))
    assert found == pytest.approx(300, abs=1) and fastest_ns(stacks, (110, 110)) == 300
    assert low < 280


def test_of_many_calls_the_best_price_of_memory_is_found() -> None:
    """Five calls to a place of 180 bytes: two fast ones and three lean ones, in 530 ns; a byte is worth 0.25 ns."""
    stacks: list[Stack] = [([[(100, 60, 0), (110, 20, 0)], [(150, 60, 0), (160, 20, 0)]], 10)]
    low, found = bounds_ns(stacks, (180, 180))
    assert found == pytest.approx(530, abs=1) and fastest_ns(stacks, (180, 180)) == 530
    assert low <= 500


def test_what_stands_at_a_place_leaves_less_for_its_calls() -> None:
    """As above, but 40 bytes of the first place are taken, which leaves it one fast call of five."""
    stacks: list[Stack] = [([[(100, 60, 0), (110, 20, 0)], [(150, 60, 0), (160, 20, 0)]], 10)]
    first, other = placed(stacks, (180, 180))
    taken = Table(variables=(0,), sync_ns=np.array([0, 0]), bytes=np.array([40, 90]), transient_bytes=np.array([0, 0]))
    own = Segment(name="own", domains=(2,), tables=(taken,))
    assert refined_bound_ns([first, other], 0.0, ENOUGH) == pytest.approx(530, abs=1)
    assert refined_bound_ns([replace(first, own=(own,)), other], 0.0, ENOUGH) == pytest.approx(540, abs=1)


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_is_faster(seed: int) -> None:
    draw = random.Random(seed)

    def option() -> Option:
        return draw.randint(50, 200), draw.randint(0, 60), draw.choice((0, draw.randint(0, 40)))

    stacks: list[Stack] = [
        ([[option() for _ in range(2)] for _ in range(draw.randint(1, 2))], draw.randint(1, 4)) for _ in range(2)
    ]
    memory = [draw.randint(60, 250) for _ in range(1 + 2 * (seed % 2))]
    memory = sorted(memory * (3 // len(memory)), reverse=True)
    if sum(count for _, count in stacks) >= len(memory):
        low, found = bounds_ns(stacks, memory)
        assert bounds_ns(stacks, memory, thorough=False)[1] <= found
        assert max(low, found) <= fastest_ns(stacks, memory)


def test_places_that_hold_as_much_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(*given: Any) -> float:
        asked.append(given)
        return worked_out(*given)

    worked_out = refined._calls_ns
    monkeypatch.setattr(refined, "_calls_ns", counted)
    stacks: list[Stack] = [([[(100, 60, 0), (200, 20, 0)]], 8)]
    assert bounds_ns(stacks, (110,) * 4, enough_ns=290)[1] >= 290
    assert len(asked) == 1


def test_places_of_looped_schedules_take_no_run_of_calls() -> None:
    """Two calls of 600 ns, then six of 100: two places that run one stage each take 1200 ns, with two stages each one
    of the slow calls and three of the others."""
    stacks: list[Stack] = [([[(600, 0, 0)]], 2), ([[(100, 0, 0)]], 6)]
    in_turn, looped = (staged_bound_ns(placed(stacks, (10, 10), looped=each), 0.0) for each in (False, True))
    assert in_turn == pytest.approx(1200, abs=1)
    assert 890 <= looped <= 900


def test_nothing_is_known_beforehand_where_modes_are_in_no_table_of_their_own() -> None:
    """Then the boundary of a call does not tell them apart, and each choice is worked out."""
    chain = _chain(0, ([[(100, 60, 0), (200, 20, 0)], [(90, 70, 0), (150, 30, 0)]], 2))
    model = Model(Problem(root=Segment(name="root", domains=(), tables=()), chains=(chain,)))
    place = Places(model=model, count=1, memory_bytes=100, sent_ns=0, chains=lambda: (chain,))
    assert Costs([place]).floors(0, 0, 2, (0.0,)) == {(0, 0): 200.0, (0, 1): 190.0, (1, 1): 180.0}
    model.chains = (replace(model.chains[0], pivot=-1, pivots=1),)
    assert set(Costs([place]).floors(0, 0, 2, (0.0,)).values()) == {0.0}


def bounds_ns(
    stacks: Sequence[Stack], memory: Sequence[int], *, enough_ns: int = ENOUGH, thorough: bool = True
) -> tuple[int, int]:  # fmt: skip
    """Without and with what each choice of modes says."""
    places = placed(stacks, memory)
    return staged_bound_ns(places, 0.0), refined_bound_ns(places, 0.0, enough_ns, thorough=thorough)


def placed(stacks: Sequence[Stack], memory: Sequence[int], *, looped: bool = False) -> list[Places]:
    chains = tuple(map(_chain, range(len(stacks)), stacks))
    model = Model(Problem(root=Segment(name="root", domains=(), tables=()), chains=chains))
    nothing = (Segment(name="nothing", domains=(), tables=()),) * len(stacks)
    return [
        Places(
            model=model, count=1, memory_bytes=size, sent_ns=0, own=nothing, looped=looped, chains=lambda: chains
        )
        for size in memory
    ]  # fmt: skip


def _chain(number: int, stack: Stack) -> Chain:
    modes, count = stack
    time, held, passing = np.moveaxis(np.array(modes), 2, 0)
    table = Table(variables=(0, 1), sync_ns=time, bytes=held, transient_bytes=passing)
    return Chain(
        segment=Segment(name=f"block{number}", domains=time.shape, tables=(table,)), count=count,
        inputs=(), outputs=(), root_inputs=(), root_outputs=(),
    )  # fmt: skip


def fastest_ns(stacks: Sequence[Stack], memory: Sequence[int]) -> float:
    """Of all cuts into places of one call or more, and each call in any mode and layout."""
    calls = [[one for mode in modes for one in mode] for modes, count in stacks for _ in range(count)]
    inside = itertools.combinations(range(1, len(calls)), len(memory) - 1)
    return min(
        max(_place_ns(calls[i:j], size) for size, (i, j) in zip(memory, itertools.pairwise(cut), strict=True))
        for cut in ([0, *ends, len(calls)] for ends in inside)
    )


def _place_ns(calls: Sequence[Sequence[Option]], memory: int) -> float:
    fitting = (
        sum(t for t, _, _ in own) for own in itertools.product(*calls)
        if sum(b for _, b, _ in own) + max(p for _, _, p in own) <= memory
    )
    return min(fitting, default=float("inf"))
