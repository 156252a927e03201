"""Why nothing fits, and what would: limits that conflict, and the smallest changes under which there is a plan.

Every answer is tried: a question is asked again with a limit dropped or changed, and counts if some outer choice,
placed for the least memory, fits. That is one elimination a choice, much less than a search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from autopar.cost_model import Cluster, CostProfile
from autopar.ir.constraints import Constraint
from autopar.ir.errors import AutoparError
from autopar.passes.bounds import Bounds
from autopar.passes.build import Model
from autopar.passes.found import UNREACHABLE_NS, Limits
from autopar.passes.outer import Candidate, by_experts
from autopar.passes.positions import positions
from autopar.passes.recipes import asked
from autopar.passes.search import search
from autopar.passes.settled import peak_bytes
from autopar.passes.solve import solve

# From most state to least.
LEANER_OPTIMIZERS = ("adamw", "adam", "sgd_momentum", "adafactor", "sgd")
MOST_TIMES = 64  # so many times as many nodes are tried
FINER = 4  # halvings between a number that is too small and one that works


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """What a search is asked."""

    model: Model
    cluster: Cluster
    profile: CostProfile
    limits: Limits

    def having(self, **settings: object) -> Question:
        """With other settings of the model."""
        changed = replace(self.model.settings, **settings)  # type: ignore[arg-type]
        return replace(self, model=replace(self.model, settings=changed))

    def within(self, **limits: object) -> Question:
        """Within other limits."""
        return replace(self, limits=replace(self.limits, **limits))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """``conflict``: limits that cannot be kept together, and could without any pin among them; ``changes``: each works.

    ``complete``: whether there was time to try all of them.
    """

    conflict: tuple[str, ...]
    changes: tuple[str, ...]
    complete: bool = True


class _Late(Exception):
    """The time is up."""


def advice(question: Question, fits_bytes: int, needed_bytes: int, deadline_s: float) -> Advice:
    """``fits_bytes``: a budget that may be enough, ``needed_bytes`` one that is not.

    ``deadline_s``: by ``time.monotonic``, when to stop trying.
    """
    found, complete = _Advice(question, deadline_s), True
    try:
        found.gather(fits_bytes, needed_bytes)
    except _Late:
        complete = False
    return Advice(conflict=(*found.fixed, *found.blamed), changes=tuple(found.changes), complete=complete)


class _Advice:
    """What has been found out so far; ``blamed``: pins that may be in conflict."""

    def __init__(self, question: Question, deadline_s: float) -> None:
        self.question, self.deadline_s = question, deadline_s
        self.fixed = (
            f"a memory budget of {question.limits.memory_bytes / 1e9:.4g} GB",
            f"{question.cluster.world_size} device(s)", f"optimizer={question.model.settings.optimizer!r}",
        )  # fmt: skip
        self.pins = dict(_pins(question))
        self.blamed = list(self.pins)
        self.changes: list[str] = []

    def works(self, question: Question) -> bool:
        if time.monotonic() > self.deadline_s:
            raise _Late
        return fits(question, self.deadline_s)

    def without(self, names: Iterable[str]) -> Question:
        question = self.question
        for name in names:
            question = self.pins[name](question)
        return question

    def gather(self, fits_bytes: int, needed_bytes: int) -> None:
        self._budget(self.question, needed_bytes, fits_bytes)
        self.changes += [f"leaving {name} out" for name in self.pins if self.works(self.without([name]))]
        if self.pins and not self.works(self.without(self.pins)):
            self.blamed = []
        for name in tuple(self.blamed):
            rest = [other for other in self.blamed if other != name]
            if not self.works(self.without([other for other in self.pins if other not in rest])):
                self.blamed = rest
        self._leaner_optimizer(self.question)
        self._more_nodes(self.question)

    def _budget(self, question: Question, low: int, high: int) -> None:
        """Between one that is not enough and one that is, to a sixteenth of what lies between."""
        while not self.works(question.within(memory_bytes=_megabytes(high))):
            low, high = high, high + high // 4
        for _ in range(FINER):
            if high - low < high // 100:
                break
            middle = (low + high) // 2
            enough = self.works(question.within(memory_bytes=_megabytes(middle)))
            low, high = (low, middle) if enough else (middle, high)
        self.changes.append(f"--memory-budget {_megabytes(high) // 10**6}MB")

    def _leaner_optimizer(self, question: Question) -> None:
        now = LEANER_OPTIMIZERS.index(question.model.settings.optimizer)
        for optimizer in LEANER_OPTIMIZERS[max(now, 1) + 1 :]:
            if self.works(question.having(optimizer=optimizer)):
                self.changes.append(f"--optimizer {optimizer}")
                return

    def _more_nodes(self, question: Question) -> None:
        """The least number of nodes, all as the last ones are."""
        groups = question.cluster.nodes
        own = groups[-1].count

        def asked(count: int) -> Question:
            nodes = (*groups[:-1], replace(groups[-1], count=count))
            return replace(question, cluster=replace(question.cluster, nodes=nodes))

        if question.limits.mesh is not None and -1 not in question.limits.mesh.values():
            return  # the mesh says how many there are
        low, high = own, 2 * own
        while not self.works(asked(high)):
            low, high = high, 2 * high
            if high > MOST_TIMES * own:
                return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.works(asked(middle)) else (middle, high)
        self.changes.append(f"{high} nodes of {groups[-1].gpus} {groups[-1].device} instead of {own}")


def fits(question: Question, deadline_s: float = math.inf) -> bool:
    """Whether some outer choice fits in memory when it is placed for the least of it; pipelines are searched.

    Of the numbers of microbatches the largest and the least are tried. ``deadline_s``: by ``time.monotonic``, when to
    give up.
    """
    model, limits = question.model, question.limits
    marks = positions(model.graph, model.rules, model.settings.inputs)
    try:
        asked_of, candidates = asked(model, question.cluster, limits, marks)
        bounds = Bounds(
            model=asked_of, cluster=question.cluster, profile=question.profile, positions=marks,
            memory_bytes=limits.memory_bytes,
        )  # fmt: skip
        plain = by_experts(candidate for candidate in candidates if candidate.shape is None)
        if plain:
            for candidate in _tried([one for one in plain if bounds.least_bytes.fit(one, limits.memory_bytes)]):
                if time.monotonic() > deadline_s:
                    raise _Late
                if _fits(bounds, candidate, limits.memory_bytes):
                    return True
            return False
        search(model, question.cluster, question.profile, limits)
    except AutoparError:
        return False
    return True


def _tried(candidates: list[Candidate]) -> Iterator[Candidate]:
    for candidate in candidates:
        yield replace(candidate, count=candidate.more[-1] if candidate.more else candidate.count)
    yield from (candidate for candidate in candidates if candidate.more)


def _fits(bounds: Bounds, candidate: Candidate, budget: int) -> bool:
    if bounds.heavy.bound_ns(replace(candidate, more=())) in (None, UNREACHABLE_NS):
        return False
    made = bounds.encode(candidate, None)
    if made is None:
        return False
    leanest = solve(made[0].problem, memory_bytes=0, effort=0)
    if not leanest.found or leanest.bytes > budget:
        return False
    return peak_bytes(bounds, made, candidate, leanest, enough=budget) <= budget


def _megabytes(size: int) -> int:
    """In whole megabytes, as it is told."""
    return -(-size // 10**6) * 10**6


_Drop = Callable[[Question], Question]


def _pins(question: Question) -> Iterator[tuple[str, _Drop]]:
    """What the user fixed besides memory, devices and optimizer, and how each is left free."""
    limits, settings = question.limits, question.model.settings
    if limits.like is not None:
        yield f"like={limits.like!r}", lambda q: q.within(like=None)
    if limits.mesh is not None:
        sizes = ",".join(f"{axis}={size}" for axis, size in limits.mesh.items())
        yield f"mesh {sizes}", lambda q: q.within(mesh=None, schedule=None).having(schedule=None)
    if limits.microbatches is not None:
        yield f"num_microbatches={limits.microbatches}", lambda q: q.within(microbatches=None)
    if limits.schedule is not None:
        yield f"schedule={limits.schedule!r}", lambda q: q.within(schedule=None).having(schedule=None)
    if settings.zero is not None:
        yield f"zero={settings.zero}", lambda q: q.having(zero=None)
    if settings.recompute is not None:
        yield f"recompute={settings.recompute!r}", lambda q: q.having(recompute=None)
    for constraint in settings.constraints:
        yield f"constraint {constraint}", _dropping(constraint)


def _dropping(constraint: Constraint) -> _Drop:
    return lambda q: q.having(constraints=tuple(c for c in q.model.settings.constraints if c != constraint))
