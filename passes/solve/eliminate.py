"""Exact bucket elimination for one scalarised cost, and back-substitution.

The cost of an entry is

    time * sync + hidden * (hide - cover) + earlier * earlier_ns + ahead * ahead_ns
        + held * bytes + transient * transient_bytes

infinite where the entry is forbidden. For each variable in the plan's order: add up all tables that hold it, minimise
over it, keep the sum for back-substitution. The best values of the eliminated variables are
looked up only for the assignments of the kept variables that are asked for, many at a time.

Where the messages of a plan would hold more than ``CAP_ENTRIES`` entries, one variable is fixed to each of
its values in turn (*conditioning*) and the smaller problems are eliminated one by one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autopar.ir.errors import LimitReachedError
from autopar.passes.problem import FloatArray, IntArray, Segment
from autopar.passes.solve.deadline import in_time
from autopar.passes.solve.plan import AHEAD, BYTES, EARLIER, NET, SYNC, TRANSIENT, Plan, make_plan
from autopar.passes.solve.scheme import Bucket
from autopar.passes.solve.states import fixed

CAP_ENTRIES = 1 << 23
CAP_BOUNDARY = 1 << 24
CAP_BRANCHES = 1 << 12
CAP_NUMBERS = 1 << 24
"""Entries of the tables of all branches together, which are laid out at once: a gigabyte."""

AT_ONCE = 1 << 15
RELEASED_ENTRIES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What one unit of each number costs in the scalarised objective of one segment."""

    time: float
    hidden: float
    earlier: float = 0.0
    ahead: float = 0.0
    held: float
    transient: float

    @classmethod
    def along(cls, mu: float, *, time: float, held: float, transient: float) -> Prices:
        """At ``mu`` in [0, 3] of (7)."""
        hidden, earlier, ahead = (time * min(max(mu - begin, 0.0), 1.0) for begin in range(3))
        return cls(time=time, hidden=hidden, earlier=earlier, ahead=ahead, held=held, transient=transient)


@dataclass(kw_only=True, eq=False)
class Run:
    """One finished elimination: ``table`` over the kept variables and all values the buckets joined.

    ``again`` works these out anew after they were released. ``cases``: how many costs each entry had, which are a last
    axis of all values; assignments then end with which it is.
    """

    plan: Plan
    table: FloatArray
    values: tuple[FloatArray, ...] | None
    again: Callable[[], tuple[FloatArray, ...]]
    cases: int = 0

    def release(self) -> None:
        """Keep the table only, where the rest is large."""
        if self.plan.kept_entries > RELEASED_ENTRIES:
            self.values = None

    def assign(self, kept: IntArray) -> IntArray:
        """Return best full assignments (variables, E) for assignments (kept variables, E)."""
        behind = [-1] if self.cases else []
        full = np.zeros((len(self.plan.domains) + len(behind), kept.shape[1]), dtype=np.int64)
        full[[*self.plan.kept, *behind]] = kept
        for bucket in reversed(self.plan.buckets):
            full[bucket.scope[0]] = self.column(bucket, full).argmin(axis=0)
        return full

    def column(self, bucket: Bucket, assignments: IntArray) -> FloatArray:
        """The joined bucket (values of its variable, E) where the others are as in (variables, E)."""
        if self.values is None:
            self.values = self.again()
        total: FloatArray | None = None
        for index, values, others in bucket.lookups:
            part = self.values[index].reshape(values, -1)
            if self.cases:
                others = (*others, (-1, self.cases))
            if others:
                at = assignments[others[0][0]]
                for v, size in others[1:]:
                    at = at * size + assignments[v]
                part = part.take(at, axis=1)
            total = part if total is None else total + part
        shape = self.plan.domains[bucket.scope[0]], assignments.shape[1]
        if total is None:
            return np.zeros(shape)
        return total if total.shape == shape else np.broadcast_to(total, shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class BranchedRun:
    """A conditioned elimination. Branches are run again for the assignments that need them."""

    eliminator: Eliminator
    prices: Prices
    extras: tuple[FloatArray, ...]
    tables: FloatArray
    table: FloatArray

    def release(self) -> None:
        """Nothing is kept but tables."""

    def assign(self, kept: IntArray) -> IntArray:
        """Return best full assignments (variables, E) for assignments (kept variables, E)."""
        at = self.eliminator.condition_at
        if at >= 0:
            branch, kept = kept[at], kept.copy()
            kept[at] = 0
        else:
            branch = self.tables[(slice(None), *kept)].argmin(axis=0)
        full = np.zeros((len(self.eliminator.segment.domains), kept.shape[1]), dtype=np.int64)
        for value in range(len(self.eliminator.children)):
            mine = np.flatnonzero(branch == value)
            if mine.size:
                run = self.eliminator.branch(value, self.prices, self.extras)
                full[:, mine] = run.assign(kept[:, mine])
                full[self.eliminator.condition, mine] = value
        return full


class Eliminator:
    """A segment prepared for elimination down to ``kept``, to be run under any prices.

    ``pivot``: one of ``kept`` that is in most tables; where conditioning is needed it comes first, since its branches
    share nothing and so need no more memory than the whole.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        kept: Sequence[int],
        extras: Sequence[tuple[int, ...]] = (),
        cap_entries: int = CAP_ENTRIES,
        branches: int = 1,
        pivot: int = -1,
        most_joined: float = math.inf,
    ) -> None:
        in_time()
        self.segment = segment
        self.extras = tuple(extras)
        self.plan = make_plan(segment, kept=kept, extras=extras)
        joined = sum(bucket.entries for bucket in self.plan.buckets)
        if joined > most_joined:
            raise LimitReachedError(
                f"segment {segment.name} is too entangled for a search of meshes: each time {joined:.1e} entries would "
                f"be joined, at most {most_joined:.1e} are; name the mesh to have it worked out all the same"
            )
        self.condition = -1
        self.children: tuple[Eliminator, ...] = ()
        boundary = math.prod(segment.domains[v] for v in kept)
        if boundary > CAP_BOUNDARY:
            raise LimitReachedError(
                f"segment {segment.name}: a table over its boundary would hold {boundary} entries, at most "
                f"{CAP_BOUNDARY} are allowed: too many ways to use what its calls share, such as equal weights. Take a "
                "mesh with fewer axes, or dp, on which they are used in one way"
            )
        if self.plan.kept_entries > max(cap_entries, boundary):
            self.condition = pivot if pivot >= 0 else _most_expensive(self.plan)
        self.condition_at = kept.index(pivot) if 0 <= pivot == self.condition else -1
        if self.condition >= 0:
            size = segment.domains[self.condition]
            if self.condition_at < 0:
                branches *= size
            laid_out = branches * sum(
                table.sync_ns.size // size if self.condition in table.variables else table.sync_ns.size
                for table in segment.tables
            )
            if branches > CAP_BRANCHES or laid_out > CAP_NUMBERS:
                raise LimitReachedError(
                    f"segment {segment.name} is too entangled for exact elimination: {branches} branches or "
                    f"more of {cap_entries} entries, {laid_out} numbers; take a mesh with fewer axes"
                )
            self.children = tuple(
                Eliminator(
                    fixed(segment, {self.condition: value}),
                    kept=kept,
                    extras=extras,
                    cap_entries=cap_entries,
                    branches=branches,
                )
                for value in range(size)
            )
        self._floats: dict[int, FloatArray] = {}

    @cached_property
    def saved(self) -> IntArray:
        """[entry]: bytes that each microbatch in flight adds, in the order of ``plan.numbers``."""
        return np.asarray(self.plan.scheme.merged(self.segment.saved[None])[0])

    def run(self, prices: Prices, extras: Sequence[FloatArray] = ()) -> Run | BranchedRun:
        """Eliminate under ``prices``; ``extras`` are added to the objective as they are."""
        in_time()
        if self.children:
            tables = np.stack([self.branch(i, prices, extras).table for i in range(len(self.children))])
            at = self.condition_at
            table = tables.min(axis=0) if at < 0 else np.moveaxis(tables.squeeze(at + 1), 0, at)
            return BranchedRun(eliminator=self, prices=prices, extras=tuple(extras), tables=tables, table=table)
        return self.run_costs(self._cost(prices), extras)

    def run_costs(self, cost: FloatArray, extras: Sequence[FloatArray] = ()) -> Run:
        """Eliminate under a cost for every entry, in the order of ``plan.numbers``. Requires: no ``children``."""
        allowed = np.where(self.plan.blocked, np.inf, cost)
        values, table = self._eliminated(allowed, extras)
        return Run(plan=self.plan, table=table, values=values, again=lambda: self._eliminated(allowed, extras)[0])

    def run_cases(self, costs: Sequence[FloatArray]) -> Run:
        """As ``run_costs`` under several at once, without extras."""
        in_time()
        allowed, cases = np.where(self.plan.blocked[:, None], np.inf, np.stack(costs, axis=1)), len(costs)
        values, table = self._eliminated(allowed, (), (cases,))
        return Run(
            plan=self.plan, table=table, values=values, cases=cases,
            again=lambda: self._eliminated(allowed, (), (cases,))[0],
        )  # fmt: skip

    def _eliminated(
        self, cost: FloatArray, extras: Sequence[FloatArray], cases: tuple[int, ...] = ()
    ) -> tuple[tuple[FloatArray, ...], FloatArray]:
        """Tables, extras and messages, and the table over the kept variables. ``cases``: how many costs each entry has,
        on a last axis of everything."""
        plan = self.plan
        values = [*self._tables(cost, cases), *plan.arranged(extras)]
        for bucket in plan.buckets:
            values.append(_message(bucket, values, cases))
        table = np.zeros((*(plan.domains[v] for v in plan.kept), *cases))
        for index, part in plan.last:
            table = table + values[index].reshape((*part, *cases))
        return tuple(values), table

    def branch(self, value: int, prices: Prices, extras: Sequence[FloatArray]) -> Run | BranchedRun:
        """Eliminate with the conditioned variable at ``value``."""
        cut = [
            x.take([value], axis=scope.index(self.condition)) if self.condition in scope else x
            for x, scope in zip(extras, self.extras, strict=True)
        ]
        return self.children[value].run(prices, cut)

    def _cost(self, prices: Prices) -> FloatArray:
        cost = self._row(SYNC) * prices.time
        for price, row in (
            (prices.hidden, NET), (prices.earlier, EARLIER), (prices.ahead, AHEAD), (prices.held, BYTES),
            (prices.transient, TRANSIENT),
        ):  # fmt: skip
            if price != 0.0:
                cost += price * self._row(row)
        return np.asarray(cost)

    def _row(self, row: int) -> FloatArray:
        """A row of ``plan.numbers``."""
        if row not in self._floats:
            self._floats[row] = self.plan.numbers[row].astype(np.float64)
        return self._floats[row]

    def _tables(self, cost: FloatArray, cases: tuple[int, ...]) -> list[FloatArray]:
        plan = self.plan
        ends = (*plan.offsets[1:], len(cost)) if plan.scopes else ()
        return [
            cost[a:b].reshape((*(plan.domains[v] for v in scope), *cases))
            for a, b, scope in zip(plan.offsets, ends, plan.scopes, strict=True)
        ]


def holding(one: Eliminator, live: int, finer: int = 1) -> Eliminator:
    """Of a segment that holds one microbatch, holding so many. ``finer``: this part of each, and of what is held in
    passing."""
    made = copy.copy(one)
    made.children = tuple(holding(child, live, finer) for child in one.children)
    numbers = one.plan.numbers.copy()
    numbers[BYTES] += live * one.saved // finer - one.saved
    numbers[TRANSIENT] //= finer
    made.plan = replace(one.plan, numbers=numbers)
    made._floats = {row: floats for row, floats in one._floats.items() if row not in (BYTES, TRANSIENT)}
    return made


def tables(alike: Sequence[Eliminator], prices: Prices) -> list[FloatArray]:
    """``Run.table`` of each, without extras. Requires: eliminators of equal segments but for their numbers, as
    ``holding`` makes them, so that one walk over the buckets does for all."""
    first = alike[0]
    if len(alike) == 1 or first.children:
        return [each.run(prices).table for each in alike]
    return [*np.moveaxis(first.run_cases([each._cost(prices) for each in alike]).table, -1, 0)]


def assigned(one: Eliminator, prices: Sequence[Prices], kept: IntArray) -> IntArray:
    """As ``Run.assign`` at each of the prices, [price, variable, E], in one walk over the buckets where that is not
    too large."""
    cases = len(prices)
    if one.children or one.plan.kept_entries * cases > CAP_ENTRIES:
        return np.stack([one.run(each).assign(kept) for each in prices])
    case = np.repeat(np.arange(cases), kept.shape[1])
    full = one.run_cases([one._cost(each) for each in prices]).assign(np.vstack([np.tile(kept, cases), case]))[:-1]
    return np.moveaxis(full.reshape(len(full), cases, -1), 1, 0)


def _message(bucket: Bucket, values: Sequence[FloatArray], cases: tuple[int, ...]) -> FloatArray:
    """The joined bucket minimised over its variable; a large one is joined one value at a time."""
    if bucket.selection is not None:
        return bucket.selection.message(values, bucket.shape, cases)
    parts = [values[index].reshape((*shape, *cases)) for index, shape in bucket.parts]
    left = *bucket.shape[1:], *cases
    if not parts:
        return np.zeros(left)
    if len(parts) == 1:
        return np.asarray(parts[0].min(axis=0))
    if math.prod(bucket.shape) * math.prod(cases) <= AT_ONCE:
        return np.asarray(_joined(parts).min(axis=0))
    best = np.empty(left)
    here = np.empty(left)
    for value in range(bucket.shape[0]):
        # a part may not depend on the variable
        row = [part[min(value, part.shape[0] - 1)] for part in parts]
        np.add(_joined(row[:-1]), row[-1], out=here if value else best)
        if value:
            np.minimum(best, here, out=best)
    return best


def _joined(parts: Sequence[FloatArray]) -> FloatArray:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _most_expensive(plan: Plan) -> int:
    """The eliminated variable in the most bucket entries, lowest index first; -1 if none has a choice."""
    weight = [0] * len(plan.domains)
    for bucket in plan.buckets:
        for v in bucket.scope:
            if plan.domains[v] > 1:
                weight[v] += bucket.entries
    free = [v for v in range(len(plan.domains)) if v not in plan.kept and plan.domains[v] > 1]
    return max(free, key=lambda v: (weight[v], -v), default=-1)
