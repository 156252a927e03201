"""Pipelines in the search: their bounds within memory, and their plans.

The model is placed on the devices of one stage within the memory of all, then cut. What the places hold differs: of
1F1B the first has as many microbatches in flight as there are places, the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from autopar.ir.errors import InfeasibleError, UnsupportedError
from autopar.passes.build import Encoded
from autopar.passes.cutting import Cutting
from autopar.passes.extents import layers
from autopar.passes.helper import Answer
from autopar.passes.live import holding
from autopar.passes.outer import Candidate, Rung
from autopar.passes.pipelining import Arrangement, Shape
from autopar.passes.placewise import remeasured
from autopar.passes.pricing import Pricing
from autopar.passes.sending import sending
from autopar.passes.shortfall import Closest
from autopar.passes.solve import NEARLY, Costs, Solution, refined_bound_ns, staged_bound_ns, undivided_bound_ns
from autopar.passes.staging import Staging
from autopar.passes.standing import LEANER, Best, Standing
from autopar.passes.tied import least_ns
from autopar.passes.uniform import uniform

# Places that are told apart in a bound: those between hold as little as the last of them.
GROUPS = 3
# In a close bound they are more; so it is worked out at once where stages begin at calls, which also tells so many of
# the first places apart, and else where one with fewer is so near to being enough.
FINER_GROUPS, SINGLE = 10, 8
# So near to its bound a plan is not placed a second time.
NEAR = 1.002
# A plan that is so much slower than the best is not placed a second time: that gained 3.4 % at most, of a quick search
# 5 %.
SLOWER, POOR = 1.05, 1.1
# So near to the best plan bounds are raised once more, and no further.
PROVEN = 0.991


@dataclass(eq=False)
class Pipelines:
    """Bounds and settles pipelines; ``begun``: their problems, between the two. ``settled``: by their number among
    those tried. ``alike``: by mesh and shape bounds of more microbatches, by the most of them."""

    standing: Standing
    begun: dict[Candidate, tuple[Encoded, Pricing]] = field(default_factory=dict)
    settled: dict[int, Candidate] = field(default_factory=dict)
    alike: dict[tuple[object, ...], dict[int, int] | None] = field(default_factory=dict)

    def shared(self, candidate: Candidate, shape: Shape) -> Candidate | None:
        """The candidate with a bound within memory from the problem of the fewest microbatches of its mesh, which is
        worked out for all numbers of them at once; None where it cannot be placed."""
        bounds, fewest = self.standing.bounds, replace(shape, microbatches=candidate.fewest)
        key = candidate.full.axes, fewest
        counts = bounds.heavy.counts.get((candidate.full.axes, candidate.schedule), ())
        more = [count for count in counts if count > candidate.fewest and count % candidate.fewest == 0]
        if key not in self.alike:
            first = replace(candidate, count=candidate.fewest, shape=fewest)
            self.alike[key], others = bounds.helper.asked(("shared", *key), lambda: self._counted(first, fewest, more))
            bounds.problems += others
        found = self.alike[key]
        if found is None:
            return None
        bound_ns = found.get(candidate.count, 0)  # of others it says nothing: they may allow what the fewest do not
        return replace(candidate, rung=Rung.FEWEST, bound_ns=max(candidate.bound_ns, bound_ns))

    def knows(self, candidate: Candidate) -> bool:
        """Whether ``shared`` takes no work."""
        shape = candidate.shape
        return shape is not None and (candidate.full.axes, replace(shape, microbatches=candidate.fewest)) in self.alike

    def _counted(self, first: Candidate, fewest: Shape, counts: Sequence[int]) -> dict[int, int] | None:
        """Of ``counts``, multiples of those microbatches of ``first``, what each takes at least, from the last one on
        until it and all before it are no faster than the best plan; of a mixture also of those of ``first``, unless its
        experts say as much. None where it cannot be placed."""
        bounds, parts = self.standing.bounds, _parts(fewest.places, GROUPS)
        made = bounds.encode(first, fewest.schedule) if counts else None
        if made is None:
            return None if counts else {}
        staging, found, together = Staging(bounds, *made, fewest), dict[int, int](), len(counts)
        costs = Costs(staging.places(parts, counts), bare=True)
        for at, count in reversed([*enumerate(counts)]):
            as_many = replace(first, shape=replace(fewest, microbatches=count))
            slow_ns = self.standing.best_ns / (as_many.stretch * fewest.places)
            costs = costs.like(staging.places(parts, (count, count)))
            found[count] = fewest.places * (each_ns := costs.undivided_ns(slow_ns))
            if each_ns < slow_ns or not 0 < at < together:
                continue
            together = at // 2 + 1  # where all before it are not slow, not many fewer are
            costs = costs.like(staging.places(parts, (counts[0], count)))
            found |= dict.fromkeys(counts[:at], fewest.places * (each_ns := costs.undivided_ns(slow_ns)))
            if each_ns >= slow_ns:
                break
        above = self.standing.above(first)
        if bounds.heavy.there and (above is None or (bounds.heavy.bound_ns(first, above) or 0) < above):
            slow_ns = math.inf if above is None else above / fewest.places
            each_ns = costs.like(staging.places(parts)).undivided_ns(slow_ns)
            found[fewest.microbatches] = fewest.places * each_ns
        return found

    def staged(self, candidate: Candidate, shape: Shape) -> Candidate | None:
        """The candidate with a bound within memory that takes little work; None where it cannot be placed."""
        bounds = self.standing.bounds

        def work() -> Answer | None:
            made = bounds.encode(candidate, shape.schedule)
            if made is None:
                return None
            places = Staging(bounds, *made, shape).places(_parts(shape.places, GROUPS))
            return Answer(shape.places * undivided_bound_ns(places, bare=True), 0, exact=True)

        answer = bounds.asked(staged_key(candidate), work)
        if answer is None:
            return None
        bound = max(candidate.bound_ns, answer.bound_ns) + self._tied_ns(candidate, shape)
        return replace(candidate, rung=Rung.STAGED, bound_ns=bound)

    def limited(self, candidate: Candidate, shape: Shape) -> Candidate | None:
        """The candidate with a bound within memory; None where it cannot be placed or does not fit."""
        standing, bounds, above = self.standing, self.standing.bounds, self.standing.above(candidate)
        staged, problems = candidate.rung == Rung.STAGED, bounds.problems
        made: tuple[Encoded, Pricing] | None = None

        def work() -> Answer | None:
            nonlocal made
            made = bounds.again(candidate) if staged else bounds.encode(candidate, shape.schedule)
            return made and Answer(self._staged_ns(*made, shape, above), 0, exact=True)

        answer = bounds.asked((*limited_key(candidate), above, bounds.price), work)
        bounds.problems = problems + (not staged)  # else it is counted already
        if answer is None:
            return None
        tied = self._tied_ns(candidate, shape)
        bound = max(candidate.bound_ns - tied if staged else candidate.bound_ns, answer.bound_ns)
        if bounds.helper.here:
            return replace(candidate, rung=Rung.LIMITED, bound_ns=bound + tied)
        if above is None or (bound < above and len(candidate.mesh.axes) == 1):  # others cost too much
            made = made or self._again(candidate)
            least = max(1, int(shape.live(shape.places - 1)))
            solver = standing.solver(holding(made[0], least), standing.limits.memory_bytes * shape.places)
            found = standing.solved(solver, 0, above)
            if found.status == "infeasible":
                self._near(Cutting(standing, candidate, shape, *made), found, made[0])
                return None
            bound = max(bound, 0 if found.status == "unknown" else found.bound_ns)
        limited = replace(candidate, rung=Rung.LIMITED, bound_ns=bound + tied)
        if standing.may_improve(limited):
            self.begun[limited] = made or self._again(candidate)
        return limited

    def _again(self, candidate: Candidate) -> tuple[Encoded, Pricing]:
        """The problem of a candidate that could be placed before."""
        made = self.standing.bounds.again(candidate)
        assert made is not None
        return made

    def _staged_ns(
        self, encoded: Encoded, pricing: Pricing, shape: Shape, enough_ns: int | None, *, thorough: bool = False
    ) -> int:
        """Time of all work on one place's devices, each place within its own memory; not more than ``enough_ns``
        asks for. ``thorough``: as long as choices of modes raise it; else until a place is once found to take
        less."""
        bounds, places = self.standing.bounds, shape.places
        price, groups = bounds.price, Staging(bounds, encoded, pricing, shape).places
        each_ns = None if enough_ns is None else -(-enough_ns // places)
        if shape.loops == 1 and layers(bounds.model) >= shape.stages:
            finer = groups(_parts(places, FINER_GROUPS, SINGLE))
            return places * refined_bound_ns(finer, price, each_ns, thorough=thorough)
        bound = staged_bound_ns(groups(_parts(places, GROUPS)), price, each_ns)
        if each_ns is not None and NEARLY * each_ns <= bound < each_ns:
            bound = max(bound, undivided_bound_ns(groups(_parts(places, FINER_GROUPS))))
        return places * bound

    def _tied_ns(self, candidate: Candidate, shape: Shape) -> int:
        """Least time of a step after its slowest place, as a part of the candidate's bound; 0 where stages may begin
        anywhere."""
        bounds = self.standing.bounds
        if layers(bounds.model) < shape.stages:
            return 0
        least = least_ns(bounds.model, bounds.pricing(candidate), bounds.cluster.world_size // shape.places)
        return math.floor(least / candidate.stretch)

    def settle(self, candidate: Candidate, shape: Shape) -> bool:
        """As ``_settle``. What nobody asked for and cannot be cut is left out. Raises UnsupportedError otherwise."""
        standing, objective_ns = self.standing, None
        try:
            objective_ns = self._settle(candidate, shape)
        except (UnsupportedError, InfeasibleError) as error:
            if not standing.bounds.searched:
                raise
            standing.bounds.refused = standing.bounds.refused or error
        self.settled[len(standing.tried)] = candidate
        standing.done(candidate, candidate.step_bound_ns, objective_ns)
        return objective_ns is not None

    def prove(self, overdue: Callable[[], bool]) -> None:
        """Raise the bounds of what was settled by all means, as long as they make a gap that is wide."""
        standing = self.standing
        while standing.best is not None and standing.tried and not overdue():
            at, tried = min(enumerate(standing.tried), key=lambda one: one[1].bound_ns)
            candidate = self.settled.pop(at, None)
            if candidate is None or candidate.shape is None or tried.bound_ns >= standing.best.objective_ns * PROVEN:
                break
            bound_ns = int(self.proven_ns(candidate, standing.best.objective_ns) * candidate.stretch)
            standing.tried[at] = replace(tried, bound_ns=max(bound_ns, tried.bound_ns))

    def proven_ns(self, candidate: Candidate, objective_ns: int) -> int:
        """The bound of a pipeline raised by all means, as far as a plan of so much time asks; 0 where it is as high."""
        bounds, shape = self.standing.bounds, candidate.shape
        if shape is None or candidate.step_bound_ns >= objective_ns * PROVEN:
            return 0
        tied_ns, problems = self._tied_ns(candidate, shape), bounds.problems
        enough_ns = math.ceil(objective_ns * PROVEN / candidate.stretch) - tied_ns

        def work() -> Answer:
            return Answer(self._staged_ns(*self._again(candidate), shape, enough_ns, thorough=True), 0, exact=True)

        answer = bounds.asked(("proven", candidate.full.axes, shape, enough_ns, bounds.price), work)
        bounds.problems = problems  # it is counted already
        return 0 if answer is None else answer.bound_ns + tied_ns

    def _settle(self, candidate: Candidate, shape: Shape) -> int | None:
        """The time of the best plan found: placed as if every call held as many microbatches as the first stage does,
        then, if that leaves something to be gained, as if it held what stages hold on average.
        """
        standing = self.standing
        made = self.begun.pop(candidate, None) or standing.bounds.encode(candidate, shape.schedule)
        if made is None:
            return None
        cutting = Cutting(standing, candidate, shape, *made)
        found: list[int] = []
        known: set[object] = set()
        for live in dict.fromkeys((shape.most_live, shape.mean_live) if cutting.by_calls else (shape.most_live,)):
            slower = POOR if standing.limits.quick else SLOWER
            poor = min(found, default=0) * candidate.handicap > standing.best_ns * slower
            if found and (poor or min(found) <= candidate.step_bound_ns * NEAR):
                break
            encoded = holding(made[0], live)
            best = self._held(cutting, encoded, known)
            if best is None:
                continue
            solution, cut = best
            found.append(cut.objective_ns)
            if standing.best is None or cut.objective_ns * candidate.handicap < standing.best_ns:
                standing.take(Best(candidate, solution, encoded, made[1], cut.objective_ns, cut))
        return min(found, default=None)

    def _held(
        self, cutting: Cutting, encoded: Encoded, known: set[object]
    ) -> tuple[Solution, Arrangement] | None:
        """A placement of ``encoded`` for one stage's devices within the memory of all stages, and how it is cut.

        A cut that does not fit asks for a leaner placement. ``known``: placements whose cuts fit, not to be cut again.
        """
        standing, shape = self.standing, cutting.shape
        budget = standing.limits.memory_bytes * shape.places
        priced = sending(cutting.model, encoded, cutting.pricing, shape) if cutting.by_calls else encoded
        effort = int(not (standing.limits.quick or cutting.by_calls))  # places choose for their calls once more
        for _ in range(LEANER):
            solution = standing.solved(standing.solver(priced, budget), effort)
            if not solution.found or solution.bytes > budget:
                self._near(cutting, solution, encoded)
                return None
            solution = remeasured(encoded.problem, uniform(priced.problem, solution, budget))
            placement = solution.root, solution.calls
            if placement in known:
                return None
            solution, units, cut = cutting.placed(solution, encoded)
            if cut is not None and max(cut.bytes) <= standing.limits.memory_bytes:
                known.add(placement)
                return solution, cut
            if len(units) < shape.stages:
                standing.bounds.refused = UnsupportedError(
                    f"{shape.stages} pipeline stages, but the model has only {len(units)} parts to cut it into"
                )
                return None
            self._near(cutting, solution, encoded)
            budget = int(min(budget, solution.bytes) * 0.93)
        return None

    def _near(self, cutting: Cutting, solution: Solution, encoded: Encoded) -> None:
        """Remember what does not fit by its fullest place, as long as nothing else does."""
        standing, places = self.standing, cutting.shape.places
        size = -(-solution.bytes // places)
        if standing.best is None and (standing.closest is None or size < standing.closest.bytes):
            try:
                size = max(size, cutting.fullest_bytes(solution, encoded))
            except UnsupportedError as error:  # it cannot be cut at all
                standing.bounds.refused = standing.bounds.refused or error
        closest = Closest(cutting.candidate, solution, encoded, cutting.pricing, size)
        standing.near(closest, solution.least_bytes // places)


def staged_key(candidate: Candidate) -> tuple[Hashable, ...]:
    """What a helper knows a pipeline's bound at little work by."""
    return "staged", candidate.full.axes, candidate.shape


def limited_key(candidate: Candidate) -> tuple[Hashable, ...]:
    """How that begins by which it knows its close bounds."""
    return "limited", candidate.full.axes, candidate.shape


def _parts(places: int, most: int, single: int = 1) -> list[range]:
    """The first places one by one, the last one, and those between in at most ``most`` runs of neighbours."""
    single = min(single, places - 1)
    between = range(single, places - 1)
    step = max(1, -(-len(between) // most))
    runs = [between[first : first + step] for first in range(0, len(between), step)]
    return [*(range(place, place + 1) for place in range(single)), *runs, range(places - 1, places)]
