"""The relaxed problem at given multipliers: a lower bound and a concrete assignment.

With multipliers  lambda >= 0 ns/byte,  weights alpha >= 0 of the instances that sum to 1,  and mu in [0, 3], of which
mu' is what is below 1, mu'' what is from there to 2, mu''' what is above:

    max(0, N, N + E, N + E + A) >= mu' N + mu'' E + mu''' A      for each mu              (7)
    max over i of transient[i] >= sum over i of alpha[i] transient[i]                     (8)
    L = min  sum over i of [S + mu' N + mu'' E + mu''' A + lambda (bytes + alpha[i] transient)] - lambda * memory_bytes
      <= optimum                                                                          (9)

The weight of a chain is spread evenly over its calls. In the block's table every entry (boundary, pivot)
takes the largest value over a grid of mu, in the root the whole minimum does: both keep (9) a lower bound.
The grid of a segment is {0} until an instance is found that (7) prices too low. What ``sharpen`` proves
about single entries at the present multipliers counts too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autopar.passes.problem import FloatArray, IntArray
from autopar.passes.solve.chain import Power, Runs, power
from autopar.passes.solve.choice import ENDS, AnyRun, BlockChoice, Candidate, Multipliers, better_mu, choose
from autopar.passes.solve.eliminate import Eliminator
from autopar.passes.solve.model import HELD, TIME, WORK, Model, amounts
from autopar.passes.solve.plan import AHEAD, BYTES, EARLIER, NET, SYNC, TRANSIENT

CAP_GRID = 6
APART = 0.03
NEAR = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """A finished relaxation.

    ``floors`` is L + lambda * memory_bytes for every state of the shared variables, ``value`` the one of the
    state ``at`` that the candidate has. ``slack`` is what (7) costs there and ``raise_mu`` says how to
    tighten it. ``tables`` are the blocks' over (shared, in, out, pivot).
    """

    multipliers: Multipliers
    floors: FloatArray
    at: int
    value: float
    slack: float
    raise_mu: tuple[tuple[int, float], ...]
    root_runs: tuple[AnyRun, ...]
    root_mu: float
    block_runs: tuple[tuple[AnyRun, ...], ...]
    tables: tuple[FloatArray, ...]
    better: tuple[dict[tuple[int, int, int], IntArray], ...]
    choices: tuple[BlockChoice, ...]
    powers: tuple[Power, ...]
    candidate: Candidate | None

    def near(self, at: int) -> bool:
        """Whether these multipliers bound the shared state ``at`` about as well as their own."""
        return bool(self.floors[at] <= self.value + NEAR * abs(self.value))

    def extras(self, model: Model) -> list[FloatArray]:
        """The chains as tables of the root."""
        return [c.in_root(p.table) for c, p in zip(model.chains, self.powers, strict=True)]


class _Known:
    """What was worked out at one set of multipliers."""

    def __init__(self, chains: int) -> None:
        self.runs: dict[tuple[int, float], AnyRun] = {}
        self.powers: dict[tuple[int, tuple[float, ...]], tuple[FloatArray, Power]] = {}
        self.raised: dict[int, FloatArray] = {}
        self.better: tuple[dict[tuple[int, int, int], IntArray], ...] = tuple({} for _ in range(chains))
        self.root_raised: FloatArray | None = None
        self.root_better: dict[int, IntArray] = {}

    def release(self) -> None:
        """Evaluations may still refer to the runs."""
        for run in self.runs.values():
            run.release()


class Relaxation:
    """Evaluates multipliers; remembers the grids of mu and the runs at the latest multipliers, and without prices."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.grids: list[list[float]] = [[0.0] for _ in model.counts]
        self._tight: dict[tuple[int, float], int] = {}
        self._known: dict[Multipliers, _Known] = {}
        self._here = _Known(len(model.chains))
        self.here: Multipliers | None = None  # the latest, which what is raised belongs to

    def free(self) -> Multipliers:
        """The multipliers of a problem without a memory limit."""
        return Multipliers(weights=(1.0, *(0.0 for _ in self.model.chains)))

    def evaluate(self, m: Multipliers, *, at: int | None = None) -> Evaluation:
        """Solve the relaxed problem at ``m`` with the present grids.

        The candidate is the best one with the shared state ``at``, or of all.
        """
        model = self.model
        if m not in self._known:
            free = self.free()
            for old in [old for old in self._known if old != free]:
                self._known.pop(old).release()
            self._known[m] = _Known(len(model.chains))
        self._here, self.here = self._known[m], m
        grids = self.grids if m.time else [[0.0] for _ in self.grids]
        block_runs: list[tuple[AnyRun, ...]] = []
        tables: list[FloatArray] = []
        powers: list[Power] = []
        for number, chain in enumerate(model.chains):
            runs = tuple(self._run(chain.eliminator, 1 + number, m, mu, ()) for mu in grids[1 + number])
            key = (number, tuple(grids[1 + number]))
            if key not in self._here.powers:
                table = chain.boundary(np.max([r.table for r in runs], axis=0))
                if number in self._here.raised:
                    table = np.maximum(table, self._here.raised[number])
                self._here.powers = {k: p for k, p in self._here.powers.items() if k[0] != number}
                self._here.powers[key] = (table, power(table.min(axis=3), chain.chain.count))
            tables.append(self._here.powers[key][0])
            powers.append(self._here.powers[key][1])
            block_runs.append(runs)
        extras = [c.in_root(p.table) for c, p in zip(model.chains, powers, strict=True)]
        root_runs = tuple(self._root(m, mu, extras) for mu in grids[0])
        each = np.stack([r.table.reshape(-1) for r in root_runs])
        floors = each.max(axis=0)
        if self._here.root_raised is not None:
            floors = np.maximum(floors, self._here.root_raised)
        at = int(floors.argmin()) if at is None else at
        best = int(each[:, at].argmax())
        shared = model.shared_values(at)
        candidate: Candidate | None = None
        slack = 0.0
        raises: tuple[tuple[int, float], ...] = ()
        choices: tuple[BlockChoice, ...] = ()
        if np.isfinite(floors[at]):
            roots = np.concatenate([r.assign(shared) for r in root_runs], axis=1)
            candidate, slack, raises, choices = self._complete(
                m, grids, float(floors[at]), at, roots, best, block_runs, tables, powers
            )
        return Evaluation(
            multipliers=m,
            floors=floors,
            at=at,
            value=float(floors[at]),
            slack=slack,
            raise_mu=raises,
            root_runs=root_runs,
            root_mu=grids[0][best],
            block_runs=tuple(block_runs),
            tables=tuple(tables),
            better=self._here.better,
            choices=choices,
            powers=tuple(powers),
            candidate=candidate,
        )

    def raise_entries(
        self,
        number: int,
        at: tuple[IntArray, ...],
        bound: FloatArray,
        better: dict[tuple[int, int, int], IntArray],
    ) -> None:
        """Use proven bounds of table entries of chain ``number``, until other multipliers are asked for."""
        chain = self.model.chains[number]
        if number not in self._here.raised:
            shape = (chain.shareds, chain.states, chain.states, chain.pivots)
            self._here.raised[number] = np.full(shape, -np.inf)
        np.maximum.at(self._here.raised[number], at, bound)
        self._here.better[number].update(better)
        self._here.powers = {k: p for k, p in self._here.powers.items() if k[0] != number}

    def raise_root(self, at: IntArray, bound: FloatArray, better: dict[int, IntArray]) -> None:
        """The same for the whole relaxed problem, by shared state."""
        if self._here.root_raised is None:
            self._here.root_raised = np.full(math.prod(self.model.shared_shape), -np.inf)
        np.maximum.at(self._here.root_raised, at, bound)
        self._here.root_better.update(better)

    def tighten(self, m: Multipliers, *, at: int, tolerance: float, rounds: int) -> Evaluation:
        """Evaluate, adding values of mu until (7) costs no more than ``tolerance`` or nothing helps."""
        found = self.evaluate(m, at=at)
        idle = 0
        for _ in range(rounds):
            added = [self._add(i, mu) for i, mu in found.raise_mu] if found.slack > tolerance else []
            if not any(added):
                break
            better = self.evaluate(m, at=at)
            idle = 0 if better.value > found.value + max(tolerance, 1e-5 * abs(found.value)) else idle + 1
            found = better if better.value >= found.value else found
            if idle == 3:
                break
        return found

    def _add(self, segment: int, mu: float) -> bool:
        """Add a value to a grid, if it is a new one; a full grid loses that which was tight longest ago.

        The ends stay: each is exact where it is the largest of (1).
        """
        grid = self.grids[segment]
        if any(abs(mu - old) <= APART * max(mu, old) for old in grid):
            return False
        if len(grid) == CAP_GRID:
            inner = [old for old in grid if old not in ENDS]
            grid.remove(min(inner, key=lambda old: (self._tight.get((segment, old), 0), -abs(old - mu))))
        grid.append(mu)
        self._tight[segment, mu] = self.model.evaluations
        return True

    def _run(
        self, eliminator: Eliminator, segment: int, m: Multipliers, mu: float, extras: tuple[FloatArray, ...]
    ) -> AnyRun:
        key = (segment, mu)
        if key not in self._here.runs:
            self.model.evaluations += 1
            self._here.runs[key] = eliminator.run(m.prices(segment, self.model.counts[segment], mu), extras)
        return self._here.runs[key]

    def _root(self, m: Multipliers, mu: float, extras: list[FloatArray]) -> AnyRun:
        self.model.evaluations += 1
        return self.model.root.run(m.prices(0, 1, mu), extras)

    def _complete(
        self,
        m: Multipliers,
        grids: list[list[float]],
        value: float,
        at: int,
        roots: IntArray,
        best: int,
        block_runs: list[tuple[AnyRun, ...]],
        tables: list[FloatArray],
        powers: list[Power],
    ) -> tuple[Candidate, float, tuple[tuple[int, float], ...], tuple[BlockChoice, ...]]:
        """The assignment behind the relaxed optimum, what (7) lost on it, and better mu."""
        known = [roots] if at not in self._here.root_better else [roots, self._here.root_better[at][:, None]]
        every = np.concatenate(known, axis=1)
        costs = self.model.root_cost(m.prices(0, 1, 0.0), every, [p.table for p in powers])
        root = every[:, [int(costs.argmin())]]
        real = amounts(self.model.root.plan.measure(root))[:, 0]
        time, held, works, means = int(real[TIME]), int(real[HELD]), [int(real[WORK])], [float(real[WORK])]
        slack = lost = float(costs.min()) - value
        self._tight[0, grids[0][best]] = self.model.evaluations
        raises: list[tuple[int, float]] = []
        if lost > 0:
            ends = self._ends(m, 0, self.model.root.plan.measure(roots))
            raises += [(0, mu) for mu in better_mu(grids[0], best, ends)]
        calls: list[tuple[tuple[int, IntArray], ...]] = []
        choices: list[BlockChoice] = []
        for number, (chain, runs, table, whole) in enumerate(
            zip(self.model.chains, block_runs, tables, powers, strict=True)
        ):
            start, shared, end = (int(x[0]) for x in chain.states_of(root))
            path = whole.path(shared, start, end)
            block = self._columns(m, number, path, shared, runs, table)
            choices.append(block)
            index = {key: i for i, key in enumerate(dict.fromkeys(step[1:] for step in path))}
            repeats = np.zeros(len(index), dtype=np.int64)
            for repeat, *key in path:
                repeats[index[(key[0], key[1])]] += repeat
            time += int((repeats * block.real[TIME]).sum())
            held += int((repeats * block.real[HELD]).sum())
            works.append(int(block.real[WORK].max()))
            means.append(float((repeats * block.real[WORK]).sum()) / chain.chain.count)
            calls.append(tuple((r, block.values[:, index[(a, b)]]) for r, a, b in path))
            for at in block.tight:
                self._tight[1 + number, grids[1 + number][int(at)]] = self.model.evaluations
            lost_here = repeats * (block.cost - block.bound)
            slack += float(lost_here.sum())
            worst = int(lost_here.argmax())
            if lost_here[worst] > 0:
                ends = self._ends(m, 1 + number, block.numbers[:, :, worst])
                at = int(_along(ends, grids[1 + number]).argmax())
                raises += [(1 + number, mu) for mu in better_mu(grids[1 + number], at, ends)]
        candidate = Candidate(
            root=root[:, 0],
            calls=tuple(calls),
            time=time,
            held=held,
            works=tuple(works),
            mean_works=tuple(means),
        )
        return candidate, slack, tuple(raises), tuple(choices)

    def _ends(self, m: Multipliers, segment: int, numbers: IntArray) -> FloatArray:
        """Cost at each of ``ENDS`` of assignments with the given numbers (NUMBERS, K)."""
        p = m.prices(segment, self.model.counts[segment], 0.0)
        flat = m.time * numbers[SYNC] + p.held * numbers[BYTES] + p.transient * numbers[TRANSIENT]
        exposed = np.cumsum(numbers[[NET, EARLIER, AHEAD]], axis=0)
        return np.stack([flat, *(flat + m.time * exposed)])

    def _columns(
        self,
        m: Multipliers,
        number: int,
        path: Runs,
        shared: int,
        runs: tuple[AnyRun, ...],
        table: FloatArray,
    ) -> BlockChoice:
        keys = list(dict.fromkeys(step[1:] for step in path))
        start = np.array([k[0] for k in keys], dtype=np.int64)
        end = np.array([k[1] for k in keys], dtype=np.int64)
        shareds = np.full(len(keys), shared, dtype=np.int64)
        better = self._here.better[number]
        return choose(self.model, m, number, runs, table, better=better, shared=shareds, start=start, end=end)


def _along(ends: FloatArray, grid: list[float]) -> FloatArray:
    """What each assignment costs at its own grid value; ``ends``: at each of ``ENDS``."""
    return np.array([np.interp(mu, ENDS, column) for mu, column in zip(grid, ends.T, strict=True)])
