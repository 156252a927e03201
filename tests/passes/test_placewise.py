"""Modes chosen place by place: within memory, and as fast as trying every cut with every mode of every call."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from autopar.ir.pipeline import Mark
from autopar.passes import placewise
from autopar.passes.pipelining import Shape, Unit
from autopar.passes.placewise import PRECISE, Option, Places
from autopar.passes.units import Cost

PASSING = 40  # from this seed on calls hold something in passing


@dataclass(frozen=True, kw_only=True)
class Case:
    """Calls of some kinds, one a unit, whose present cost is that of their kind's first option."""

    kinds: tuple[int, ...]
    options: tuple[tuple[Option, ...], ...]
    rest: tuple[tuple[int, int, int], ...]  # what stands in a unit besides: time, held and saved bytes
    passing: tuple[int, ...]  # that what stands besides holds in passing
    entering: tuple[int, ...]
    transfers: tuple[int, ...]
    shape: Shape

    @property
    def units(self) -> tuple[Unit, ...]:
        found = []
        for at, (kind, (time, held, saved)) in enumerate(zip(self.kinds, self.rest, strict=True)):
            own = self.options[kind][0].cost
            found.append(Unit(
                mark=Mark("layers", at), time_ns=own.time_ns + time, held_bytes=own.held_bytes + held,
                saved_bytes=own.saved_bytes + saved, transient_bytes=max(own.transient_bytes, self.passing[at]),
                entering_bytes=self.entering[at],
            ))  # fmt: skip
        return tuple(found)

    def places(self, memory_bytes: int) -> Places:
        now = [self.options[kind][0].cost for kind in self.kinds]
        rooms = [memory_bytes] * self.shape.places
        return Places(self.units, self.kinds, self.options, now, self.shape, self.transfers, rooms)

    def measured(self, cut: tuple[int, ...], chosen: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
        """Time and bytes of the slowest and of the fullest place, one call after the other."""
        slowest = fullest = 0
        for place, (first, after) in enumerate(itertools.pairwise((0, *cut))):
            live, time, held, passing = self.shape.live(place), 0, 0, 0
            for border in (first, after):
                if 0 < border < len(self.kinds):
                    time += self.transfers[border]
                    # values of all that are in flight and a gradient on its way back; from behind one gradient
                    held += self.entering[border] * (1 if border == after else int(live) + 1)
            for at in range(first, after):
                own = next(o.cost for o in self.options[self.kinds[at]] if o.values == chosen[at])
                time += own.time_ns + self.rest[at][0]
                held += own.held_bytes + self.rest[at][1] + int(live) * (own.saved_bytes + self.rest[at][2])
                passing = max(passing, own.transient_bytes, self.passing[at])
            slowest, fullest = max(slowest, time), max(fullest, held + passing)
        return slowest, fullest

    def every(self) -> Iterator[tuple[int, int]]:
        count = len(self.kinds)
        ways = [[option.values for option in self.options[kind]] for kind in self.kinds]
        for chosen in itertools.product(*ways):
            for inner in itertools.combinations(range(1, count), self.shape.places - 1):
                yield self.measured((*inner, count), chosen)


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    kinds = tuple(sorted(rng.randrange(2) for _ in range(rng.randint(3, 6))))
    options = []
    for kind in range(2):
        times = sorted(rng.sample(range(100, 200), rng.randint(1, 3)), reverse=True)
        saved = sorted(rng.sample(range(1, 60), len(times)))
        held, other = rng.randint(0, 20), rng.randint(0, 20) if seed % 2 else 0  # another layout holds more
        passing = [rng.randint(0, 40) if seed >= PASSING else 0 for _ in times]
        options.append(tuple(
            Option(values=(kind, i), cost=Cost(
                time_ns=t, held_bytes=held + (other if i else 0), saved_bytes=s, transient_bytes=p,
            )) for i, (t, s, p) in enumerate(zip(times, saved, passing, strict=True))
        ))  # fmt: skip
    rest = tuple(
        (rng.randint(0, 90), rng.randint(0, 30), rng.randint(0, 9)) if rng.random() < 0.3 else (0, 0, 0) for _ in kinds
    )
    shape = Shape(schedule="1f1b", places=rng.randint(2, 3), loops=1, microbatches=rng.randint(3, 8))
    entering = tuple(rng.randint(0, 3) for _ in kinds)
    least = min(option.cost.transient_bytes for known in options for option in known)
    return Case(
        kinds=kinds, options=tuple(options), rest=rest, entering=entering,
        passing=tuple(rng.randint(0, least) for _ in kinds),
        transfers=tuple(rng.randint(0, 20) for _ in kinds), shape=shape,
    )  # fmt: skip


@pytest.mark.parametrize("ways", [placewise.MOST_WAYS, 0])
@pytest.mark.parametrize("seed", range(2 * PASSING))
def test_no_cut_with_other_modes_is_faster(seed: int, ways: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what the last bytes of a place, too few for one more call, might have been used for; whether all ways are
    tried or a front of them is."""
    monkeypatch.setattr(placewise, "MOST_WAYS", ways)
    case = drawn(seed)
    every = list(case.every())
    rng, sizes = random.Random(-seed - 1), sorted(held for _, held in every)
    memory = rng.choice([sizes[0], sizes[len(sizes) // 3], sizes[-1]])
    best = min(time for time, held in every if held <= memory)
    places = case.places(memory)
    cut = places.cut()
    gain = max(known[0].cost.time_ns - known[-1].cost.time_ns for known in case.options)
    if cut is None:  # takes a saved byte more than it needs: half of one is rounded
        assert memory == sizes[0]
        return
    spans = enumerate(itertools.pairwise((0, *cut)))
    chosen = tuple(values for place, span in spans for values in places.values(place, *span))
    time, held = case.measured(tuple(cut), chosen)
    assert held <= memory
    assert best <= time <= (best + 2 * gain) * (1 + PRECISE) + 1


def test_what_stands_beside_calls_may_hold_most_in_passing() -> None:
    """A cut that is taken is within memory then, too."""
    found = 0
    for seed in range(PASSING, 2 * PASSING):
        drew = drawn(seed)
        case = replace(drew, passing=tuple(41 + at % 3 * 15 for at in range(len(drew.kinds))))
        sizes = sorted(held for _, held in case.every())
        memory = sizes[len(sizes) // 3]
        places = case.places(memory)
        if (cut := places.cut()) is not None:
            spans = enumerate(itertools.pairwise((0, *cut)))
            chosen = tuple(values for place, span in spans for values in places.values(place, *span))
            assert case.measured(tuple(cut), chosen)[1] <= memory
            found += 1
    assert found


def test_memory_enough_leaves_nothing_to_recompute() -> None:
    case = drawn(3)
    places = case.places(10**9)
    cut = places.cut()
    assert cut is not None
    spans = enumerate(itertools.pairwise((0, *cut)))
    chosen = [values for place, span in spans for values in places.values(place, *span)]
    assert chosen == [case.options[kind][-1].values for kind in case.kinds]
    assert case.measured(tuple(cut), tuple(chosen))[0] <= math.ceil(
        min(time for time, _ in case.every()) * (1 + PRECISE)
    )


def test_too_little_memory_is_told() -> None:
    assert drawn(0).places(1).cut() is None
