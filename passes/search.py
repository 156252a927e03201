"""The whole search: meshes, pipelines and microbatches outside, everything else by elimination inside.

Every outer choice is bounded with memory ignored, cheaply first; the best bound is worked out next, until no bound is
below the best objective. More microbatches never cost less time in the built-in cost model (every price is a start
plus a rate), so their number grows only where memory costs time; a profile with its own functions gets
every number tried.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from autopar.cost_model import Cluster, CostProfile
from autopar.ir.errors import LimitReachedError
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS
from autopar.passes.assignment import decode
from autopar.passes.bounds import Bounds, Known
from autopar.passes.build import Model
from autopar.passes.candidates import MIXED_AXIS
from autopar.passes.climb import climb
from autopar.passes.failure import failure
from autopar.passes.found import Found, Limits
from autopar.passes.heavy_bounds import counts_by_mesh
from autopar.passes.helper import MOST, Told
from autopar.passes.outer import Candidate, Rung, by_experts
from autopar.passes.paced import pace
from autopar.passes.piped import Pipelines, limited_key, staged_key
from autopar.passes.pipelining import Shape
from autopar.passes.plain import Plain, with_more
from autopar.passes.positions import positions
from autopar.passes.recipes import asked
from autopar.passes.solve.deadline import until
from autopar.passes.standing import Standing
from autopar.passes.uniform import uniform

# A candidate that may be faster than the best by this factor is worked out at once; a pipeline by that one.
DIVE, DIVE_PIPED = 1.01, 1.03

# Where the best plan is slower than a bound by this factor, a better one is wanted before others are bounded.
FAR = 1.2

# Meshes that come first, one group after the other, so that the many others have a plan to beat; pipelines among them
# only where memory binds or a pipeline is the best plan, but for those of experts, of which a mixture that needs much
# memory has its best plans.
FIRST = (
    (("dp",),), (("dp", "ep"), ("ep",), (PIPELINE_AXIS, "ep")), ((PIPELINE_AXIS, "dp"),), ((PIPELINE_AXIS, "tp"),),
    (("ep", "tp"),), ((MIXED_AXIS,),), (("dp", "tp"),),
)  # fmt: skip

# A helper bounds those pipelines closely that are so near to the best plan.
CLOSELY = 0.95

WORTH_S, LONG_S = 0.03, 0.5  # a search that takes longer gets a helper; one that takes so much longer, more
GRACE_S = 60.0  # so much longer a search may take that has no plan yet
NEAREST = 4  # so many are looked into where nothing fits
PATIENCE = 6  # so many tries of a quick search in a row that find nothing better are the last


@dataclass(eq=False)
class _Search:
    standing: Standing
    progress: Callable[[str], None]
    hooked: bool  # prices are the user's own
    started: float = field(default_factory=time.monotonic)
    complete: bool = True
    # of a quick search: how often each pipeline was tried, those done with, and tries since the best plan was found
    tries: Counter[Mesh] = field(default_factory=Counter)
    done: set[Mesh] = field(default_factory=set)
    idle: int = 0
    limit: LimitReachedError | None = None  # why the first candidate was left that was too much to solve
    next_rank: float = math.inf  # of what comes after the candidate at hand
    # what is explored after what is at hand: next, and at the end
    next: list[Candidate] = field(default_factory=list)
    last: list[Candidate] = field(default_factory=list)
    helpers: int = 0

    def __post_init__(self) -> None:
        self.bounds = self.standing.bounds
        self.plain, self.pipelines = Plain(self.standing), Pipelines(self.standing)
        self.quick = self.standing.limits.quick

    def _promising(self, candidate: Candidate) -> bool:
        """Whether a candidate may be better by so much that finding out now saves work on others, none of which is
        likely to be much faster still."""
        return candidate.rank[0] < min(self.standing.best_ns / DIVE, self.next_rank * FAR)

    def _late(self) -> bool:
        """Whether the time is up; a search without a plan has a grace."""
        grace_s = GRACE_S if self.standing.best is None and not self.quick else 0.0
        return time.monotonic() - self.started > self.standing.limits.time_limit_s + grace_s

    def _tell(self, candidate: Candidate, left: int) -> None:
        """How far the search is, about to look into ``candidate``, of least bound."""
        best = "no plan yet"
        if self.standing.best is not None:
            best = f"best {self.standing.best.objective_ns / 1e9:.4g} s by mesh({self.standing.best.candidate.full})"
        self.progress(
            f"{self.bounds.problems} problems worked out, {left} candidates left, {best}, bound "
            f"{candidate.step_bound_ns / 1e9:.4g} s"
        )

    @property
    def told(self) -> Told:
        """What the helper is to know."""
        objective_ns = 0 if self.standing.best is None else self.standing.best.objective_ns
        return Told(self.standing.best_ns, self.bounds.binds, self.bounds.price, objective_ns)

    def step(self, candidate: Candidate) -> list[Candidate]:
        """Bound or settle a candidate; what is left of it, the most promising first.

        One that is too entangled is left: what it could have gained counts in the gap.
        """
        try:
            with until(self._late):
                return self._step(candidate)
        except LimitReachedError as error:
            self.limit, self.complete = self.limit or error, self.complete and not self._late()
            self.standing.done(candidate, candidate.step_bound_ns)
            return []

    def _step(self, candidate: Candidate) -> list[Candidate]:
        if self.quick and candidate.rung == Rung.DEVICE:
            candidate = replace(candidate, rung=Rung.POOLED)  # of many problems, and none may need so much
        elif self.quick and candidate.rung >= Rung.AXIS:
            return self.quickly(candidate)
        if candidate.rung < Rung.OWN:
            return self.raised(candidate)
        if candidate.shape is not None:
            if candidate.rung in (Rung.OWN, Rung.STAGED):
                left = self.within(candidate)
                dive = left and left[0].rank[0] * DIVE_PIPED < self.standing.best_ns < math.inf
                return self._step(left[0]) if dive else left
            self.pipelines.settle(candidate, candidate.shape)
            return []
        first = self.standing.best is None and bool(candidate.more) and not self.bounds.own_only
        if candidate.rung == Rung.OWN and (self.bounds.binds or self.mixture or first):
            return self.within(candidate)
        again, more = self.plain.settle(candidate, max(self.standing.best_ns / FAR, self.next_rank * DIVE))
        if again is not None and candidate.rung < Rung.LIMITED == again.rung and self._promising(again):
            again, _ = self.plain.settle(again)
        larger = with_more(candidate, more or 0, hooked=self.hooked) if more is not None or self.hooked else None
        return [left for left in (again, larger) if left is not None]

    def within(self, candidate: Candidate) -> list[Candidate]:
        """The candidate, whose own bound is known, with one within memory."""
        if candidate.shape is None:
            return self.plain.priced(candidate)
        first = candidate.rung == Rung.OWN and self.standing.above(candidate) is not None
        raised = self.pipelines.staged if first else self.pipelines.limited
        higher = raised(candidate, candidate.shape)
        return [] if higher is None else [higher]

    def ahead(self, candidate: Candidate) -> list[Candidate]:
        """In the helper: the candidate with a bound that the search asks the helper for."""
        told, bounds = self.bounds.helper.best, self.bounds
        self.standing.best_ns, bounds.binds, bounds.price = told.best_ns, told.binds, told.price or bounds.price
        if candidate.rung < Rung.ROUGH or self.unfree(candidate):
            return self.raised(candidate)
        if candidate.rung == Rung.LIMITED:
            self.pipelines.proven_ns(candidate, told.objective_ns)
        if candidate.rung == Rung.STAGED and bounds.helper.is_past(limited_key(candidate)):
            return [replace(candidate, rung=Rung.LIMITED)]  # to be proven at last, if it was settled
        asked = candidate.shape is not None or bounds.binds or self.mixture
        known = candidate.rung in (Rung.OWN, Rung.STAGED) and not math.isinf(told.best_ns)
        return self.within(candidate) if asked and known and self.close(candidate) else []

    def close(self, candidate: Candidate) -> bool:
        """In the helper: whether a close bound of a pipeline is likely to be what the search comes to ask. A plan much
        slower than the bound would not be the best for long."""
        return candidate.rung != Rung.STAGED or candidate.rank[0] > CLOSELY * self.bounds.helper.best.best_ns

    def staged(self, candidate: Candidate) -> bool:
        """In the helper: whether the search knows what a pipeline's stages take, and has not gone on."""
        helper = self.bounds.helper
        return helper.knows(staged_key(candidate)) and not helper.is_past(limited_key(candidate))

    @property
    def mixture(self) -> bool:
        """Whether memory decides: of experts, most of it. Then numbers of microbatches are looked at one by one."""
        return self.bounds.heavy.there and not self.quick

    def unfree(self, candidate: Candidate) -> bool:
        """Whether to ignore memory tells little, so that all of it that is left is skipped."""
        if candidate.rung == Rung.HEAVY:
            return self.mixture and candidate.shape is None and not candidate.more
        return candidate.rung == Rung.SHARED and (self.bounds.binds or self.mixture)

    def quickly(self, candidate: Candidate) -> list[Candidate]:
        """Settle it at once. Fewer microbatches of a pipeline hold no less, and seldom take less time."""
        if candidate.shape is None and candidate.rung < Rung.OWN:
            return [] if (higher := self.bounds.raised(candidate)) is None else [higher]
        if candidate.full in self.done:
            self.standing.done(candidate, candidate.step_bound_ns)
            return []
        best, fits = self.standing.best, True
        if candidate.shape is None:
            self.plain.counted(candidate, hooked=self.hooked)
        else:
            fits = self.pipelines.settle(candidate, candidate.shape)
        better = self.standing.best is not best
        self.tries[candidate.full] += 1
        self.idle = 0 if better or best is None else self.idle + 1
        if not fits or (not better and self.tries[candidate.full] > 1):
            self.done.add(candidate.full)
        return []

    def raised(self, candidate: Candidate) -> list[Candidate]:
        """The candidate with its next bound; where memory binds its first number of microbatches, and the others."""
        bounds = self.bounds
        if candidate.rung == Rung.DEVICE and bounds.pooled.begin(candidate):
            return [candidate]  # a helper may go on from here
        if self.mixture and candidate.rung == Rung.POOLED and candidate.more:
            return bounds.pooled.counted(candidate)
        if bounds.binds and candidate.rung == Rung.FEWEST and candidate.more:
            return bounds.pooled.first_count(candidate)
        if self.unfree(candidate):
            return [replace(candidate, rung=Rung.OWN)]
        if self.mixture and candidate.shape is not None and Rung.POOLED <= candidate.rung <= Rung.AXIS:
            return self.shared(candidate, candidate.shape)
        if bounds.binds and candidate.shape is not None and candidate.rung == Rung.AXIS:
            higher = self.pipelines.shared(candidate, candidate.shape)
        else:
            higher = bounds.raised(candidate, self.standing.above(candidate))
        if higher is None:
            return []
        return bounds.pooled.by_count(higher) if higher.rung == Rung.OWN and higher.shape is None else [higher]

    def shared(self, candidate: Candidate, shape: Shape) -> list[Candidate]:
        """A pipeline of a mixture with what its experts say, and where that is not enough with what all numbers of
        microbatches of its mesh share; that before, where it is known."""
        found: Candidate | None = candidate
        known, begun = self.pipelines.knows(candidate), not math.isinf(self.standing.best_ns)
        if known:
            found = self.pipelines.shared(candidate, shape)
        if candidate.rung == Rung.POOLED and found is not None and self.standing.may_improve(found):
            raised = self.bounds.raised(replace(found, rung=Rung.POOLED), self.standing.above(found))
            found = raised and replace(raised, rung=max(raised.rung, found.rung))
        if not known and found is not None and (begun or candidate.rung > Rung.POOLED):
            found = self.pipelines.shared(found, shape) if self.standing.may_improve(found) else found
        return [] if found is None else [found]

    def run(self, candidates: list[Candidate]) -> None:
        """Meshes of data axes first, then those with tp, so that the many others have a plan to beat; in a quick search
        pipelines last."""
        if self.quick:
            plain, piped = ([c for c in candidates if (c.shape is None) == each] for each in (True, False))
            candidates = [*self.explore(plain, fitting=bool(piped)), *piped]
            self.idle = 0
        elif not self.bounds.own_only:
            left: list[Candidate] = []
            for at, names in enumerate(FIRST):
                group = [c for c in candidates if c.full.names in names]
                if not group or (group[0].shape is not None and not self._early()):
                    continue
                candidates = [c for c in candidates if c.full.names not in names]
                after = [*itertools.chain.from_iterable(FIRST[at + 1 :])]
                self.next = [c for c in candidates if c.shape is None and c.full.names in after]
                self.last = [c for c in candidates if c not in self.next]
                left += self.explore(group, fitting=True)
            candidates, self.last = [*candidates, *left], []
        left = self.explore(candidates, fitting=True)
        if self.standing.best is None and self.complete and left:
            self.unfit(left)
        for candidate in map(self._left, left):
            self.standing.done(candidate, candidate.step_bound_ns)
        if self.complete and not self.quick:
            self.pipelines.prove(self._late)

    def _early(self) -> bool:
        """Whether pipelines come early: memory binds, or one is the best plan."""
        best = self.standing.best
        return self.bounds.binds or (best is not None and best.cut is not None)

    def unfit(self, candidates: Sequence[Candidate]) -> None:
        """No plan was found, and what is left surely does not fit: look into a few of it, to tell what is missing."""
        standing, least_bytes = self.standing, self.bounds.least_bytes.of
        near = sorted(by_experts(candidates), key=least_bytes)
        others = [max(standing.limits.memory_bytes + 1, least_bytes(each)) for each in near[NEAREST:]]
        standing.least_bytes = min([standing.least_bytes, *others])
        self.explore(near[:NEAREST])
        self.complete = self.complete or standing.closest is not None

    def _left(self, candidate: Candidate) -> Candidate:
        """A candidate that time did not suffice for, with the bounds that all meshes share."""
        while not (self.complete or self.quick) and candidate.rung < Rung.POOLED:
            higher = self.bounds.raised(candidate)
            if higher is None:
                break
            candidate = higher
        return candidate

    def explore(self, candidates: list[Candidate], *, fitting: bool = False) -> list[Candidate]:
        """Best bound first; ends when no bound is below the best objective. What is left. ``fitting``: and what surely
        needs more memory than there is."""
        waiting = [(candidate.rank, number, candidate) for number, candidate in enumerate(candidates)]
        heapq.heapify(waiting)
        numbers = itertools.count(len(waiting))
        while waiting:
            candidate = waiting[0][2]
            self._tell(candidate, len(waiting))
            enough = self.standing.best is not None and candidate.rank[0] >= self.standing.best_ns
            if enough or self._late():
                self.complete = self.complete and enough
                break
            if (self.quick and self.idle >= PATIENCE) or (fitting and not candidate.fits):
                break
            if self.standing.best is None and candidate.late:  # a plan is wanted first
                waiting.sort(key=lambda item: (not item[2].fits, item[2].late, item[0]))
                candidate = waiting.pop(0)[2]
                heapq.heapify(waiting)
            else:
                heapq.heappop(waiting)
            self.next_rank = waiting[0][0][0] if waiting else math.inf
            for left in self.step(candidate):
                heapq.heappush(waiting, (left.rank, next(numbers), left))
            if self.helpers:
                self.bounds.helper.tell(self.told)
            self.delegate(waiting)
        return [candidate for _, _, candidate in sorted(waiting)]

    def delegate(self, waiting: Sequence[tuple[Any, int, Candidate]]) -> None:
        """Let helpers raise bounds, too, of all that waits, once the search takes long enough."""
        helper, taken_s = self.bounds.helper, time.monotonic() - self.started
        # Answers at a price of memory are asked at the first that is found: a helper must know it.
        ready = not (self.quick or self.bounds.own_only) and bool(self.bounds.pooled.known)
        wanted = MOST if ready and taken_s >= LONG_S else int(ready and taken_s >= WORTH_S)
        if wanted > self.helpers:
            self.helpers = wanted
            soon = [*(candidate for _, _, candidate in waiting), *self.next]
            helper.start(partial(climb, soon, self.last, self.ahead, helper, self.staged), self.told, wanted)


def search(
    model: Model, cluster: Cluster, profile: CostProfile, limits: Limits, *,
    progress: Callable[[str], None] = lambda _: None, known: Known | None = None,
) -> Found:  # fmt: skip
    """The fastest plan within the limits. ``known``: by other searches of the same model, with the same constraints.

    Raises InfeasibleError with what is needed against what there is, LimitReachedError if the time ran out
    before any plan was found, UnsupportedError naming the node where the arguments leave no legal placement.
    """
    known = known or Known(positions(model.graph, model.rules, model.settings.inputs))
    model, candidates = asked(model, cluster, limits, known.positions)
    bounds = Bounds(
        model=model, cluster=cluster, profile=profile, positions=known.positions, memory_bytes=limits.memory_bytes,
        searched=limits.mesh is None, quick=limits.quick,
        grounds=known.grounds,
    )  # fmt: skip
    bounds.heavy.counts = counts_by_mesh(candidates)
    hooked = profile.has_compute_hook or profile.has_collective_hook
    state = _Search(Standing(bounds, limits), progress, hooked)
    try:
        state.run(candidates)
    finally:
        bounds.helper.stop()
    if state.standing.best is None:
        raise failure(state.standing, complete=state.complete, limit=state.limit)
    best = state.standing.best
    solution, candidate = best.solution, best.candidate
    objective_ns, pricing, paced = best.objective_ns, best.pricing, best.paced
    if best.cut is None:
        encoded = best.encoded, best.pricing
        alike = uniform(best.encoded.problem, solution, limits.memory_bytes)
        if state.plain.peak(candidate, alike, encoded) <= limits.memory_bytes:
            if paced is None:
                solution, objective_ns = alike, alike.objective_ns
            elif (again := pace(bounds, encoded, candidate, alike)) is not None:
                solution, objective_ns, paced = alike, again.finish_ns, again
    if paced is not None:
        pricing = replace(pricing, device=paced.device)
    planned = bounds.model_of(candidate)
    return Found(
        model=planned, mesh=candidate.mesh, full=candidate.full, objective_ns=objective_ns,
        pipeline=None if best.cut is None or candidate.shape is None else (candidate.shape, best.cut),
        microbatches=candidate.count, pricing=pricing, paced=paced, encoded=best.encoded, solution=solution,
        assignment=decode(planned, best.encoded, solution, best.pricing.mesh),
        bound_ns=min([objective_ns, *(tried.bound_ns for tried in state.standing.tried)]), complete=state.complete,
        evaluations=bounds.evaluations, candidates=bounds.problems, variables=solution.variables,
        tried=tuple(state.standing.tried),
    )  # fmt: skip
