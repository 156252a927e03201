"""The bound of stages where a place has memory for few calls: each way to choose their modes is solved by itself.

A price of memory lets a call be in part of one layout and in part of another. Where a place has two calls, that may be
all the difference. So the times of places are raised to what is proven of each choice of modes, those first that are
nearest to what the bound allows, as long as that raises the bound. Where it has more, the best price for that place
and so many calls, which the few that all share are not, says most of it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from autopar.passes.problem import Chain, Problem, Segment
from autopar.passes.solve.in_order import PRECISE, in_order_ns
from autopar.passes.solve.solver import Solver
from autopar.passes.solve.staged import SAFE, Costs, Places
from autopar.passes.solve.states import fixed

NEARLY = 0.9  # of what is enough, so much makes choices of modes worth working out
MOST_CALLS = 2
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the price of memory; all choices are priced so first
EFFORT = 1
MOST_REFINED = 24  # times of places that are raised
IDLE = 4  # so many in a row that change nothing are the last


def refined_bound_ns(
    places: Sequence[Places], price: float, enough_ns: int | None = None, *, thorough: bool = True
) -> int:  # fmt: skip
    """Least time T of the slowest place; 0 where nothing can be said. ``enough_ns``: where T is nearly that, it is
    raised by choices of modes. ``thorough``: as long as these raise it; else until a place is once found to take less.
    Requires: ``places`` with ``chains``, those that hold most first, and calls at each of them."""
    costs = Costs(places)
    if not costs.known:
        return 0
    stops, walks = costs.stops((0.0, costs.steep))
    calls = places[0].model.counts[1:]
    found = in_order_ns(stops, walks, calls, 0.0)
    if enough_ns is None or found < NEARLY * enough_ns:
        return int(found * SAFE)
    prices = list(dict.fromkeys(share * price for share in SHARES))
    rooms = [costs.room_bytes(s) for s in range(len(places))]
    above_ns = enough_ns * (1 + 4 * PRECISE)  # so that what is found, which is less precise, is enough
    done: set[tuple[int, int, int]] = set()
    idle = 0
    while found * SAFE < enough_ns and idle < IDLE and len(done) < MOST_REFINED:
        just_above = found * (1 + 4 * PRECISE)
        able = (
            (s, chain, stop.alone[chain].within(just_above, count))
            for s, stop in enumerate(stops) for chain, count in enumerate(calls)
        )
        options = [one for one in able if one[2] > 0 and one not in done]
        if not options:
            break
        s, chain, taken = max(options, key=lambda one: (stops[one[0]].alone[one[1]].of(one[2]), one[0]))
        done.add((s, chain, taken))
        rest_ns = stops[s].sent_ns + stops[s].own_ns[chain]
        block, room, enough = places[s].chains()[chain], rooms[s][chain], above_ns - rest_ns
        if taken > MOST_CALLS:
            exact = _many_ns(block.segment, taken, room, price, enough)
        else:
            exact = _calls_ns(block, costs.floors(chain, s, taken, prices), room, price, enough)
        for one, stop in enumerate(stops[: s + 1]):  # those before it hold more
            if rooms[one][chain] <= room:
                stop.alone[chain].lift(taken, stop.sent_ns + stop.own_ns[chain] + exact)
        idle = 0 if rest_ns + exact > just_above else idle + 1
        found = in_order_ns(stops, walks, calls, found)
        if not thorough and rest_ns + exact < enough_ns:
            break
    return int(found * SAFE)


def _many_ns(call: Segment, count: int, memory_bytes: int, price: float, enough_ns: float) -> float:
    """Least time of so many calls within so much memory, in any modes and each from any state; not more than
    ``enough_ns`` asks for."""
    return _least_ns(_loose({0: call}, [0] * count), memory_bytes, price, enough_ns, effort=0)


def _calls_ns(
    chain: Chain, floors: Mapping[tuple[int, ...], float], memory_bytes: int, price: float, enough_ns: float
) -> float:  # fmt: skip
    """Least time of calls of a chain within so much memory; not more than ``enough_ns`` asks for. ``floors``: by their
    modes what they take at least; the lowest comes first, so that others need not be worked out to the end."""
    best = enough_ns
    segments = {mode: fixed(chain.segment, {0: mode}) for mode in sorted({mode for modes in floors for mode in modes})}

    def least_ns(orders: Iterable[Sequence[int]], *, linked: bool) -> float:
        below = best
        for order in orders:
            problem = _linked(chain, segments, order) if linked else _loose(segments, order)
            below = _least_ns(problem, memory_bytes, price, below, EFFORT)
        return below

    for chosen in sorted(floors, key=lambda modes: (floors[modes], modes)):
        if floors[chosen] * SAFE >= best:
            break
        if least_ns([chosen], linked=False) < best:
            best = least_ns(sorted(set(itertools.permutations(chosen))), linked=True)
    return best


def _least_ns(problem: Problem, memory_bytes: int, price: float, below: float, effort: int) -> float:
    """Least time of a problem; not more than ``below``."""
    solver = Solver(problem, memory_bytes=memory_bytes, price=price, upper_bound_ns=math.ceil(below))
    solution = solver.solution(effort)
    return below if solution.status == "infeasible" else min(below, float(solution.bound_ns))


def _loose(segments: Mapping[int, Segment], modes: Sequence[int]) -> Problem:
    """Calls in these modes, in any order and each from any state."""
    parts = tuple(
        Chain(segment=segments[mode], count=count, inputs=(), outputs=(), root_inputs=(), root_outputs=())
        for mode, count in sorted(Counter(modes).items())
    )
    return Problem(root=Segment(name="place", domains=(), tables=()), chains=parts)


def _linked(chain: Chain, segments: Mapping[int, Segment], modes: Sequence[int]) -> Problem:
    """Calls in these modes, each in the state that the one before left; nothing is shared."""
    domains = tuple(chain.segment.domains[variable] for variable in chain.inputs)
    size, parts = len(domains), []
    for at, mode in enumerate(modes):
        states = tuple(range(at * size, (at + 2) * size))
        parts.append(Chain(
            segment=segments[mode], count=1, inputs=chain.inputs, outputs=chain.outputs, root_inputs=states[:size],
            root_outputs=states[size:],
        ))  # fmt: skip
    return Problem(root=Segment(name="place", domains=domains * (len(modes) + 1), tables=()), chains=tuple(parts))
