"""A lower bound for a model cut into stages that run at once, each within a memory of its own.

Place s takes the instances A_s within ``memory_s``; with ``sent_s``, its communication with others, it is busy for T
at most. With prices λ_s >= 0 and weights y_s >= 0

    y_s · Σ over A_s of (time + λ_s · bytes_s)  <=  y_s · (T - sent_s + λ_s · memory_s)               for each place
    T  >=  (Σ over instances of  min over s of y_s (time + λ_s · bytes_s)  +  Σ y_s (sent_s - λ_s memory_s)) / Σ y_s

where bytes_s differ by what a place holds of each microbatch in flight. An instance is a call of a block as a whole;
the root may stand anywhere, so there each entry of a table takes its own minimum. Weights are such that a block
costs the same everywhere, which makes the bound tight where blocks are all there is. Places that hold less have no
higher price; all such prices of a short list are tried.

Calls are not divided, and each has one mode and begins as the one before ended: ``ladders``, ``in_order``.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autopar.passes.problem import Chain, FloatArray, Segment
from autopar.passes.solve.chain import power
from autopar.passes.solve.choice import ENDS
from autopar.passes.solve.eliminate import Eliminator, Prices, tables
from autopar.passes.solve.in_order import Rungs, Stop, in_order_ns
from autopar.passes.solve.ladders import by_modes, by_states, least_ns
from autopar.passes.solve.model import Model
from autopar.passes.solve.plan import BYTES, SYNC

SHARES = (1.0, 0.2, 0.0)  # of the price that is given, which are tried
SAFE = 1 - 1e-9  # what rounding may have added


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """So many places alike. ``memory_bytes``, ``sent_ns``: of each. ``own``: by chain the part of the root that stands
    where calls of it are, ``anew`` if it is there beside what the root has. ``sides``: whether it receives, and sends;
    ``handed``: what either side takes longer than the least by the state of a call that it is handed over in, if known.
    ``longer``: by chain, [mode], what a call takes longer than the model says. ``looped``: calls at a place come in
    several runs, with those of others between them. ``chains``: with the bytes that calls hold there.
    """

    model: Model
    count: int
    memory_bytes: int
    sent_ns: int
    own: tuple[Segment, ...] = ()
    anew: bool = False
    sides: tuple[bool, bool] = (False, False)
    handed: Sequence[float] = ()
    longer: Sequence[FloatArray] = ()
    looped: bool = False
    chains: Callable[[], Sequence[Chain]] = tuple


def staged_bound_ns(places: Sequence[Places], price: float, enough_ns: int | None = None) -> int:
    """Least time T of the slowest place; 0 where nothing can be said cheaply.

    ``price``: what a byte may be worth, in ns. ``enough_ns``: by how much more T may be is not asked. Requires: models
    of one problem but for their bytes, those that hold most first.
    """
    costs = Costs(places)
    if not costs.known:
        return 0
    best = costs.undivided((0.0, costs.steep))
    prices = list(dict.fromkeys(share * price for share in SHARES))
    for chosen in itertools.combinations_with_replacement(prices, len(places)):
        if enough_ns is not None and best * SAFE >= enough_ns:
            return int(best * SAFE)
        best = max(best, costs.divided(chosen))
    return int(max(best, costs.undivided((*prices, costs.steep))) * SAFE)


def undivided_bound_ns(places: Sequence[Places], *, bare: bool = False) -> int:
    """What calls that are not divided say alone: at little work for each of ``places``, which may be many. ``bare``: as
    if no traffic were exposed, at a quarter of it."""
    return Costs(places, bare=bare).undivided_ns()


class Costs:
    """What calls and the root cost at each place, by the price of memory. ``bare``: as if no traffic were exposed."""

    def __init__(self, places: Sequence[Places], *, bare: bool = False) -> None:
        self.places, self.first, self.bare = places, places[0].model, bare
        self.known = bool(self.first.chains) and not self.first.root.children
        self._chains = range(len(self.first.chains))
        self._blocks: dict[tuple[int, int, float], FloatArray] = {}
        self._roots: dict[tuple[int, float], FloatArray] = {}
        self._parts: dict[Segment, Eliminator] = {}
        self._own: dict[tuple[Segment, Prices], float] = {}
        self._least_passing: dict[int, FloatArray] = {}

    def like(self, places: Sequence[Places]) -> Costs:
        """Of places of the same problem, which differ in bytes, in what they send and in how much longer their calls
        take; at the same steep price."""
        made = copy.copy(self)
        made.steep, made.places, made.first = self.steep, places, places[0].model
        if all(at.model is other.model for at, other in zip(places, self.places, strict=True)):
            return made
        made._blocks = {key: costs for key, costs in self._blocks.items() if not key[-1]}
        made._roots = {key: costs for key, costs in self._roots.items() if not key[-1]}
        made._least_passing = {}
        return made

    def undivided_ns(self, enough_ns: float = np.inf) -> int:
        """As ``undivided_bound_ns``. ``enough_ns``: by how much more it may be is not asked."""
        return int(self.undivided((0.0, self.steep), enough_ns / SAFE + 2) * SAFE) if self.known else 0

    @functools.cached_property
    def steep(self) -> float:
        """A price at which all memory of a place is worth all time of its calls."""
        least = [self.first.counts[1 + number] * self._block(number, 0, 0.0).min() for number in self._chains]
        free = float(sum(least)) / sum(at.count for at in self.places)
        return free / max(1, *(at.memory_bytes for at in self.places))

    def divided(self, prices: Sequence[float]) -> float:
        """T by weights, with a price for each place."""
        calls = [[self._block(n, s, price).min(axis=3) for s, price in enumerate(prices)] for n in self._chains]
        roots = [self._root(s, price) for s, price in enumerate(prices)]
        sent = [at.sent_ns + (min(self._owned(at, 0.0), default=0.0) if at.anew else 0.0) for at in self.places]
        return _bound(self.places, calls, roots, prices, sent)

    def undivided(self, prices: Sequence[float], enough_ns: float = np.inf) -> float:
        """T by calls of one chain each, and of all, at the same prices everywhere."""
        several, at_calls, looped = len(self._chains) > 1, bool(self.places[0].own), self.places[0].looped
        one = [[number] for number in self._chains]
        ladders = [] if looped else [(numbers, partial(self._by_states, prices, *numbers)) for numbers in one]
        together = [*one, [*self._chains]] if several else one
        ladders += [(numbers, partial(self._by_modes, prices, numbers)) for numbers in together]
        found, counts = 0.0, [at.count for at in self.places]
        for numbers, rungs in ladders:
            if found >= enough_ns:
                return found
            each = len(numbers) == len(self._chains) and at_calls
            calls = sum(self.first.counts[1 + number] for number in numbers)
            found = max(found, least_ns(counts, rungs(), calls, each=each, enough_ns=enough_ns))
        in_order = several and at_calls and not looped and found < enough_ns
        return max(found, self._in_order(prices, found)) if in_order else found

    def _in_order(self, prices: Sequence[float], low_ns: float) -> float:
        """T by calls of all chains, as they follow each other."""
        stops, walks = self.stops(prices, modes=False)
        return in_order_ns(stops, walks, self.first.counts[1:], low_ns)

    def stops(self, prices: Sequence[float], *, modes: bool = True) -> tuple[list[Stop], list[Rungs]]:
        """Places, and by chain what calls take without ends. ``modes``: calls are in one mode each, too."""
        ladders = [self._by_states(prices, number) for number in self._chains]
        if modes:
            others = [self._by_modes(prices, [number]) for number in self._chains]
            ladders = [[*map(_higher, *both)] for both in zip(ladders, others, strict=True)]
        stops = [
            Stop(count=at.count, sent_ns=at.sent_ns, own_ns=self._owned(at, 0.0), alone=[*map(Rungs, own)])
            for at, own in zip(self.places, zip(*ladders, strict=True), strict=True)
        ]
        free = Places(model=self.first, count=1, memory_bytes=0, sent_ns=0)
        return stops, [Rungs(self._walk((0.0,), number, 0, free)) for number in self._chains]

    def _by_modes(self, prices: Sequence[float], numbers: Sequence[int]) -> list[Iterator[float]]:
        """Least T of each place with one call of these chains, two and so on, each in one mode."""
        passing = np.concatenate([self._passing(number) for number in numbers])
        ladders = []
        for s, at in enumerate(self.places):
            blocks = [[self._each_mode(number, s, price) for number in numbers] for price in prices]
            own = [min(self._owned(at, price)[number] for number in numbers) for price in prices]
            base = at.sent_ns + np.array(own) - np.array(prices) * at.memory_bytes
            ladders.append(by_modes(np.array([*map(np.concatenate, blocks)]), passing, np.array(prices), base))
        return ladders

    def floors(self, number: int, s: int, calls: int, prices: Sequence[float]) -> dict[tuple[int, ...], float]:
        """What so many calls of a chain take at least at a place, by their modes; 0 where tables tell none apart."""
        chain = self.first.chains[number]
        chosen = list(itertools.combinations_with_replacement(range(chain.chain.segment.domains[0]), calls))
        if chain.pivot != 0:
            return dict.fromkeys(chosen, 0.0)
        memory_bytes, at = self.places[s].memory_bytes, np.array(chosen)
        each = [self._each_mode(number, s, price)[at].sum(axis=1) - price * memory_bytes for price in prices]
        return dict(zip(chosen, np.max(each, axis=0).tolist(), strict=True))

    def _by_states(self, prices: Sequence[float], number: int) -> list[Iterator[float]]:
        """Least T of each place with one call of a chain, two and so on, each from the state that the last one left."""
        return [self._walk(prices, number, s, at) for s, at in enumerate(self.places)]

    def _walk(self, prices: Sequence[float], number: int, s: int, at: Places) -> Iterator[float]:
        steps = [self._block(number, s, price).min(axis=(0, 3)) for price in prices]
        bases = [at.sent_ns + self._owned(at, price)[number] - price * at.memory_bytes for price in prices]
        none = np.zeros(len(steps[0]))
        begins, ends = (np.array(at.handed) if side and len(at.handed) else none for side in at.sides)
        return by_states(steps, bases, begins, ends)

    def _owned(self, at: Places, price: float) -> list[float]:
        """What stands at a place beside its calls, by the chain that it has calls of."""
        prices = Prices(time=1.0, hidden=0.0, held=price, transient=0.0)
        return [self._part(segment, prices) for segment in at.own] or [0.0] * len(self._chains)

    def room_bytes(self, s: int) -> list[int]:
        """What a place has for calls at most, by the chain that it has calls of."""
        at, prices = self.places[s], Prices(time=0.0, hidden=0.0, held=1.0, transient=0.0)
        held = [self._part(segment, prices) for segment in at.own] or [0.0] * len(self._chains)
        return [at.memory_bytes - int(size) for size in held]

    def _part(self, segment: Segment, prices: Prices) -> float:
        """Least cost of a part of the root by itself; 0 where that is not known."""
        if (segment, prices) not in self._own:
            if segment not in self._parts:
                self._parts[segment] = Eliminator(segment, kept=())
            found = float(self._parts[segment].run(prices).table.min())
            self._own[segment, prices] = found if np.isfinite(found) else 0.0
        return self._own[segment, prices]

    def _passing(self, number: int) -> FloatArray:
        """[mode]: the least that a call holds in passing."""
        if number not in self._least_passing:
            chain = self.first.chains[number]
            run = chain.eliminator.run(Prices(time=0.0, hidden=0.0, held=0.0, transient=1.0))
            self._least_passing[number] = np.asarray(chain.boundary(run.table).min(axis=(0, 1, 2)))
        return self._least_passing[number]

    def _block(self, number: int, s: int, price: float) -> FloatArray:
        key = number, s if price else 0, price  # places differ in memory alone
        if key not in self._blocks:
            models = [at.model for at in self.places] if price else [self.first]
            found = _blocks(models, number, price, bare=self.bare)
            self._blocks.update(((number, at, price), block) for at, block in enumerate(found))
        longer = self.places[s].longer
        return self._blocks[key] + self._by_pivot(number, longer[number]) if longer else self._blocks[key]

    def _by_pivot(self, number: int, longer: FloatArray) -> FloatArray:
        """[pivot], of what is told by mode."""
        return longer if self.first.chains[number].pivot == 0 else np.asarray(longer.min())

    def _each_mode(self, number: int, s: int, price: float) -> FloatArray:
        """[mode]: the least cost of one call."""
        return np.asarray(self._block(number, s, price).min(axis=(0, 1, 2)))

    def _root(self, s: int, price: float) -> FloatArray:
        key = s if price else 0, price
        if key not in self._roots:
            self._roots[key] = _root(self.places[s], price)
        return self._roots[key]


def _higher(*ladders: Iterator[float]) -> Iterator[float]:
    return map(max, zip(*ladders, strict=True))


def _bound(
    places: Sequence[Places], tables: Sequence[Sequence[FloatArray]], roots: Sequence[FloatArray],
    prices: Sequence[float], sent: Sequence[float],
) -> float:  # fmt: skip
    """``tables`` by chain and place; ``sent``: ns of each place beside calls and the root."""
    first = places[0].model
    longest = max(range(len(tables)), key=lambda number: first.counts[1 + number])
    least = [float(table.min()) for table in tables[longest]]
    if not all(np.isfinite(least)) or min(least) <= 0:
        return 0.0
    weights = [least[0] / one for one in least]
    extras = []
    for chain, row in zip(first.chains, tables, strict=True):
        table = np.min([weight * one for weight, one in zip(weights, row, strict=True)], axis=0)
        extras.append(chain.in_root(power(table, chain.chain.count).table))
    cost = np.min([weight * one for weight, one in zip(weights, roots, strict=True)], axis=0)
    total = float(first.root.run_costs(cost, extras).table.min())
    for weight, at, price, other in zip(weights, places, prices, sent, strict=True):
        total += weight * at.count * (other - price * at.memory_bytes)
    bound = total / sum(weight * at.count for weight, at in zip(weights, places, strict=True))
    return bound if np.isfinite(bound) else 0.0


def _blocks(models: Sequence[Model], number: int, price: float, *, bare: bool) -> list[FloatArray]:
    """(shared, in, out, mode): cost of one call in each of the models, which are of one problem but for its bytes."""
    each = list(dict.fromkeys(models))
    chains = [model.chains[number] for model in each]
    ends = ENDS[: 1 if bare else chains[0].eliminator.plan.reach + 1]
    runs = [
        tables([chain.eliminator for chain in chains], Prices.along(mu, time=1.0, held=price, transient=0.0))
        for mu in ends
    ]
    found = {
        model: chain.boundary(np.max(costs, axis=0))
        for model, chain, costs in zip(each, chains, zip(*runs, strict=True), strict=True)
    }
    return [found[model] for model in models]


def _root(at: Places, price: float) -> FloatArray:
    """Cost of every entry of the root's tables, none of its traffic exposed."""
    numbers = at.model.root.plan.numbers
    return np.asarray(numbers[SYNC] + price * numbers[BYTES], dtype=np.float64)
