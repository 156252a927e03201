"""A problem prepared for solving, and the exact numbers of one instance's choice.

``Model`` holds the eliminators, which depend on nothing but the problem, so that every price shares them.
Inside the solver a block's boundary is three flat numbers: state in, shared state, state out. A fourth one,
the value of the block's *pivot*, is kept with them: the variable tied to most tables (such as whether a
call is recomputed) splits a block's choices into families whose costs are far apart, and what relaxes
each family well is different.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopar.passes.problem import Chain, FloatArray, IntArray, Problem, Segment
from autopar.passes.solve.eliminate import CAP_ENTRIES, Eliminator, Prices, holding
from autopar.passes.solve.plan import AHEAD, BYTES, EARLIER, NET, SYNC, TRANSIENT, Plan

PIVOT_ENTRIES = 1 << 18

TIME, HELD, WORK = range(3)
"""Rows of ``amounts``: true time (1), bytes, transient bytes."""


def amounts(numbers: IntArray) -> IntArray:
    """Return (time, bytes, transient) of sums (NUMBERS)."""
    more = np.maximum(numbers[EARLIER] + np.maximum(numbers[AHEAD], 0), 0)
    time = numbers[SYNC] + np.maximum(numbers[NET] + more, 0)
    return np.stack([time, numbers[BYTES], numbers[TRANSIENT]])


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainModel:
    """One chain: its block's eliminator and the shape of its boundary. ``pivot`` is -1 for none."""

    chain: Chain
    eliminator: Eliminator
    states: int
    shareds: int
    pivot: int
    pivots: int
    root_scope: tuple[int, ...]
    root_shape: tuple[int, ...]

    def boundary(self, table: FloatArray) -> FloatArray:
        """Return a table over (inputs, shared, outputs, pivot) by flat (shared, in, out) states and pivot."""
        flat = table.reshape(self.states, self.shareds, self.states, self.pivots)
        return np.ascontiguousarray(np.swapaxes(flat, 0, 1))

    def unflatten(self, shared: IntArray, start: IntArray, end: IntArray, pivot: IntArray) -> IntArray:
        """Return the kept block variables' values (kept, E) of flat boundary states and pivot values."""
        rows: list[IntArray] = []
        domains = self.chain.segment.domains
        for variables, flat in (
            (self.chain.inputs, start),
            (self.chain.shared, shared),
            (self.chain.outputs, end),
        ):
            if variables:
                rows += [r.astype(np.int64) for r in np.unravel_index(flat, [domains[v] for v in variables])]
        if self.pivot >= 0:
            rows.append(pivot)
        return np.stack(rows) if rows else np.zeros((0, start.shape[0]), dtype=np.int64)

    def states_of(self, root: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return (first in, shared, last out) flat states of root assignments (variables, E)."""
        c, domains = self.chain, self.chain.segment.domains
        pairs = ((c.inputs, c.root_inputs), (c.shared, c.root_shared), (c.outputs, c.root_outputs))
        found: list[IntArray] = []
        for inner, outer in pairs:
            flat = np.zeros(root.shape[1], dtype=np.int64)
            for v, r in zip(inner, outer, strict=True):
                flat = flat * domains[v] + root[r]
            found.append(flat)
        return found[0], found[1], found[2]

    def in_root(self, table: FloatArray) -> FloatArray:
        """Return a table (shared, in, out) over ``root_scope``, diagonals taken where variables repeat."""
        index = np.indices(self.root_shape).reshape(len(self.root_shape), math.prod(self.root_shape))
        full = np.zeros((1 + max(self.root_scope, default=0), index.shape[1]), dtype=np.int64)
        full[list(self.root_scope)] = index
        start, shared, end = self.states_of(full)
        return np.asarray(table[shared, start, end].reshape(self.root_shape))

    def from_root(self, table: FloatArray) -> FloatArray:
        """Inverse of ``in_root``; boundaries that no root assignment has are infinite."""
        index = np.indices(self.root_shape).reshape(len(self.root_shape), math.prod(self.root_shape))
        full = np.zeros((1 + max(self.root_scope, default=0), index.shape[1]), dtype=np.int64)
        full[list(self.root_scope)] = index
        start, shared, end = self.states_of(full)
        wide = np.full((self.shareds, self.states, self.states), np.inf)
        wide[shared, start, end] = table.reshape(-1)
        return wide


def model_holding(one: Model, live: int, finer: int = 1) -> Model:
    """The model of a problem that holds one microbatch, holding so many. ``finer``: this part of each, and of what is
    held in passing."""
    made = copy.copy(one)
    made.root = holding(one.root, live, finer)
    made.chains = tuple(replace(each, eliminator=holding(each.eliminator, live, finer)) for each in one.chains)
    return made


class Model:
    """All eliminators of a problem, made once; counts eliminations in ``evaluations``.

    ``shared``: root variables that bounds are told apart by, where not those that chains share. ``most_joined``:
    entries that an elimination may join; raises LimitReachedError where it would be more.
    """

    def __init__(
        self, problem: Problem, *, shared: tuple[int, ...] | None = None, cap_entries: int = CAP_ENTRIES,
        most_joined: float = math.inf,
    ) -> None:  # fmt: skip
        self.problem = problem
        self.chains = tuple(_chain_model(chain, problem, cap_entries, most_joined) for chain in problem.chains)
        scopes = [c.root_scope for c in self.chains]
        self.shared = tuple(sorted({v for c in problem.chains for v in c.root_shared})) if shared is None else shared
        self.shared_shape = tuple(problem.root.domains[v] for v in self.shared)
        self.root = Eliminator(
            problem.root, kept=self.shared, extras=scopes, cap_entries=cap_entries, most_joined=most_joined
        )
        self.cap_entries = cap_entries
        self.counts = (1, *(c.chain.count for c in self.chains))
        self.evaluations = 0
        self._scopes = scopes
        self._rests: dict[int, Eliminator] = {}

    def shared_values(self, at: int) -> IntArray:
        """Values (shared root variables, 1) of the flat state ``at`` of all shared variables."""
        values = np.unravel_index([at], self.shared_shape) if self.shared else ()
        return np.array(values, dtype=np.int64).reshape(len(self.shared), 1)

    def shared_state(self, root: IntArray) -> int:
        """The flat state of all shared variables in a root assignment (variables)."""
        flat = 0
        for v, size in zip(self.shared, self.shared_shape, strict=True):
            flat = flat * size + int(root[v])
        return flat

    def shared_of(self, number: int, at: IntArray) -> IntArray:
        """The flat states of the variables that chain ``number`` shares, in flat states ``at`` of all."""
        values = dict(zip(self.shared, np.unravel_index(at, self.shared_shape) if self.shared else (), strict=True))
        chain = self.chains[number].chain
        flat = np.zeros(at.shape, dtype=np.int64)
        for inner, outer in zip(chain.shared, chain.root_shared, strict=True):
            flat = flat * chain.segment.domains[inner] + values[outer]
        return flat

    def root_cost(self, prices: Prices, roots: IntArray, powers: Sequence[FloatArray]) -> FloatArray:
        """The exact scalarised cost of root assignments (variables, E); ``powers`` price the chains."""
        real = amounts(self.root.plan.measure(roots))
        cost: FloatArray = prices.time * real[TIME] + prices.held * real[HELD] + prices.transient * real[WORK]
        for chain, table in zip(self.chains, powers, strict=True):
            start, shared, end = chain.states_of(roots)
            cost = cost + table[shared, start, end]
        return cost

    def rest(self, number: int) -> Eliminator:
        """The root kept on the boundary of chain ``number``; ``extras`` are the other chains."""
        if number not in self._rests:
            others = [s for i, s in enumerate(self._scopes) if i != number]
            kept = self._scopes[number]
            self._rests[number] = Eliminator(
                self.problem.root, kept=kept, extras=others, cap_entries=self.cap_entries
            )
        return self._rests[number]

    def depth(self) -> int:
        """No fewer than the floating-point additions that any one sum of an evaluation goes through."""
        chains = sum(len(c.eliminator.plan.scopes) + 4 * c.chain.count.bit_length() for c in self.chains)
        return 16 + 8 * (len(self.root.plan.scopes) + len(self.root.plan.buckets) + 2 * chains)

    def plans(self) -> tuple[Plan, ...]:
        """The plans of the root and of each chain's block."""
        return (self.root.plan, *(c.eliminator.plan for c in self.chains))

    def smallest_bytes(self) -> int:
        """No assignment needs less: the smallest allowed entries of all tables, without transients."""
        lows = [int(plan.smallest()[BYTES].sum()) for plan in self.plans()]
        return sum(count * low for count, low in zip(self.counts, lows, strict=True))

    def largest_credit(self) -> tuple[float, float]:
        """The most that negative numbers (cover, sync; bytes) can add up to over all instances: ns, bytes."""
        time = held = 0.0
        for count, plan in zip(self.counts, self.plans(), strict=True):
            low = np.minimum(plan.smallest(), 0).sum(axis=1)
            time -= count * float(low[SYNC] + low[NET] + low[EARLIER] + low[AHEAD])
            held -= count * float(low[BYTES])
        return time, held


def _chain_model(chain: Chain, problem: Problem, cap_entries: int, most_joined: float) -> ChainModel:
    domains = chain.segment.domains
    scope: list[int] = []
    for v in (*chain.root_inputs, *chain.root_shared, *chain.root_outputs):
        if v not in scope:
            scope.append(v)
    kept = (*chain.inputs, *chain.shared, *chain.outputs)
    pivot = _pivot(chain.segment, kept)
    if pivot >= 0:
        kept = (*kept, pivot)
    return ChainModel(
        chain=chain,
        eliminator=Eliminator(
            chain.segment, kept=kept, cap_entries=cap_entries, pivot=pivot, most_joined=most_joined
        ),
        states=math.prod(domains[v] for v in chain.inputs),
        shareds=math.prod(domains[v] for v in chain.shared),
        pivot=pivot,
        pivots=domains[pivot] if pivot >= 0 else 1,
        root_scope=tuple(scope),
        root_shape=tuple(problem.root.domains[v] for v in scope),
    )


def _pivot(segment: Segment, kept: tuple[int, ...]) -> int:
    """The inner variable in most tables; -1 if it is in fewer than half or makes the boundary large."""
    uses = Counter(v for table in segment.tables for v in table.variables)
    inner = [v for v, size in enumerate(segment.domains) if size > 1 and v not in kept]
    best = max(inner, key=lambda v: (uses[v], -v), default=-1)
    entries = math.prod(segment.domains[v] for v in (*kept, best))
    return best if best >= 0 and 2 * uses[best] >= len(segment.tables) and entries <= PIVOT_ENTRIES else -1
