"""Bounds on outer choices from the operations that have most of the weights, where a model has any."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from autopar.cost_model import axis_groups
from autopar.ir.errors import LimitReachedError, UnsupportedError
from autopar.passes.build import Encoded
from autopar.passes.candidates import SENDING_AXES
from autopar.passes.found import UNLIMITED_BYTES, UNREACHABLE_NS
from autopar.passes.heavy import Heavy, Rest, anchor, beside_all, fastest_ns, heavy, rest
from autopar.passes.helper import Answer
from autopar.passes.outer import Candidate
from autopar.passes.pricing import Pricing
from autopar.passes.reducing import Load, loads, reducing_ns
from autopar.passes.solve import listed_bound_ns, solver_of

if TYPE_CHECKING:
    from autopar.passes.bounds import Bounds


KEPT = 256  # problems


@dataclass(eq=False)
class HeavyBounds:
    """Each bound is worked out once. ``rests``: what is not heavy, by number of microbatches; ``fastest``: its time by
    axis and size. ``counts``: numbers of microbatches that are searched, by mesh and schedule."""

    bounds: Bounds
    counts: Mapping[tuple[object, ...], Sequence[int]] = field(default_factory=dict)
    known: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    rests: dict[int, dict[str, Rest] | None] = field(default_factory=dict)
    fastest: dict[tuple[str, int], dict[str, dict[str, int]]] = field(default_factory=dict)
    latest: dict[tuple[object, ...], Encoded | None] = field(default_factory=dict)

    @cached_property
    def there(self) -> bool:
        """Whether the model has such operations, and cheap bounds pay."""
        bounds = self.bounds
        return not bounds.own_only and bool(self.kept.operations)

    @cached_property
    def kept(self) -> Heavy:
        """Which operations they are."""
        return heavy(self.bounds.model)

    def beside(self, microbatches: int) -> dict[str, Rest] | None:
        """What is not heavy on one device, in so many microbatches or fewer; None where that cannot be."""
        count, bounds = anchor(microbatches), self.bounds

        def work() -> dict[str, Rest]:
            model, one = bounds.model_for(None, pooled=True, alone=True), replace(bounds.alone("dp", 1), count=count)
            try:
                return rest(model, bounds.ground(model, one, inner=False), count, self.kept)
            except UnsupportedError as error:
                bounds.uncut.setdefault(count, error)
                return {}

        if count not in self.rests:
            self.rests[count] = bounds.helper.asked(("rest", count), work)[0] or None
        return self.rests[count]

    @cached_property
    def _loads(self) -> tuple[Load, ...]:
        model = self.bounds.model_for(None, alone=True)
        return loads(model, self.bounds.ground(model, self.bounds.alone("dp", 1), inner=False), self.kept)

    def reducing_ns(self, candidate: Candidate) -> int:
        """From gradients that are reduced over data axes; 0 where nothing is heavy."""
        if not self.there or candidate.uneven:
            return 0
        groups = axis_groups(candidate.full.axes, self.bounds.cluster)
        places = 1 if candidate.shape is None else candidate.shape.places
        key = "reducing", tuple(groups[axis] for axis in candidate.mesh.names), places
        if key not in self.known:
            pricing = Pricing(
                mesh=candidate.mesh, cluster=self.bounds.cluster, profile=self.bounds.profile, groups=groups
            )
            self.known[key] = reducing_ns(self._loads, pricing, self.bounds.memory_bytes * places)
        return self.known[key] or 0

    def bound_ns(self, candidate: Candidate, enough_ns: int | None = None) -> int | None:
        """From their problem alone, within the memory of all places where the number of microbatches is known.

        0 where nothing is heavy, None where the candidate cannot be placed. ``enough_ns``: by how much more it may be
        is not asked, so that one problem may do for several numbers of microbatches.
        """
        if not self.there:
            return 0
        ahead = enough_ns is None and self.bounds.helper.here  # what the longest runs say is asked for first
        if (enough_ns is not None or ahead) and not candidate.more:
            for least, most in self.runs(candidate):
                found = self.within_run(candidate, least, most, enough_ns)
                if found is not None and (enough_ns is None or found >= enough_ns):
                    return found
        return self.within_run(candidate, candidate.count, candidate.count, enough_ns)

    def runs(self, candidate: Candidate) -> Iterator[tuple[int, int]]:
        """Runs of several numbers of microbatches that the candidate's is among, each half as long as the one before.

        One alone is left out: it keeps no gradients from one to the next.
        """
        run = [n for n in self.counts.get((candidate.full.axes, candidate.schedule), ()) if n > 1]
        while len(run) > 1 and candidate.count in run:
            if all(n % run[0] == 0 and run[-1] % n == 0 for n in run):
                yield run[0], run[-1]
            half = len(run) // 2
            run = run[:half] if candidate.count < run[half] else run[half:]

    def within_run(
        self, candidate: Candidate, least: int, most: int, enough_ns: int | None = None
    ) -> int | None:  # fmt: skip
        """A bound of every number of microbatches from ``least`` to ``most``. One that is not ``enough_ns`` is raised
        by what all else sends along the innermost axis, if that lies across nodes."""
        found = self._run_ns(candidate, least, most)
        if found is None or enough_ns is None:
            return found
        for among in self._across(candidate):
            if found >= enough_ns:
                break
            found = max(found, self._run_ns(candidate, least, most, among) or 0)
        return found

    def _across(self, candidate: Candidate) -> Iterator[int]:
        """So many devices of the innermost axis, if that lies across nodes: the fewest that do, and all that there
        are."""
        axis, cluster = ("", *candidate.mesh.names)[-1], self.bounds.cluster
        if axis not in SENDING_AXES or axis_groups(candidate.full.axes, cluster)[axis].nodes == 1:
            return
        size, two_nodes = candidate.mesh.size(axis), 2 * cluster.gpus_per_node
        even = cluster.has_equal_nodes and size > two_nodes and size % two_nodes == 0
        if even and self.bounds.kinds.stand_for(axis, two_nodes, size):
            yield two_nodes
        yield size

    def _fastest(self, axis: str, size: int) -> dict[str, dict[str, int]]:
        """What is not heavy takes on so many devices of one axis; nothing where that is not known."""
        key = axis, size
        if key not in self.fastest:
            bounds = self.bounds
            model, one = bounds.model_for(None, pooled=True, alone=True), bounds.alone(axis, size)

            def work() -> dict[str, dict[str, int]]:
                try:
                    ground = bounds.ground(model, one, inner=False)
                    return fastest_ns(model, ground, self.kept, bounds.most_joined)
                except (UnsupportedError, LimitReachedError):
                    return {}

            self.fastest[key], _ = bounds.helper.asked(("fastest", *key), work)
        return self.fastest[key]

    def _run_ns(self, candidate: Candidate, least: int, most: int, among: int = 1) -> int | None:
        groups = axis_groups(candidate.full.axes, self.bounds.cluster)
        near = tuple(groups[axis] for axis in candidate.mesh.names)
        key = "alone", near, candidate.schedule, least, most, not candidate.more, among
        if key not in self.known:
            answer = self.bounds.asked(key, lambda: self._solved(candidate, least, most, among))
            self.known[key] = None if answer is None else answer.bound_ns
        return self.known[key]

    def _encoded(self, candidate: Candidate, count: int) -> Encoded | None:
        """The latest few are kept, since runs of one mesh have beginnings in common."""
        ample = bool(candidate.more)
        key = candidate.full.axes, candidate.schedule, count, ample
        if key not in self.latest:
            one = replace(candidate, count=count)
            found = self.bounds.encode(one, candidate.schedule, ample=ample, only_heavy=True)
            self.latest[key] = None if found is None else found[0]
        made = self.latest[key] = self.latest.pop(key)
        if len(self.latest) > KEPT:
            del self.latest[next(iter(self.latest))]
        return made

    def _solved(self, candidate: Candidate, least: int, most: int, among: int) -> Answer | None:
        """In ``least`` microbatches, holding what ``most`` do: a bound of all numbers between."""
        beside, made = self.beside(least), self._encoded(candidate, least)
        if made is None or beside is None:
            return None
        devices = math.prod(size for _, size in candidate.mesh.axes)
        fastest = self._fastest(candidate.mesh.names[-1], among) if among > 1 else {}
        problem = beside_all(made, devices, beside, least, most, fastest, among)
        places = 1 if candidate.shape is None else candidate.shape.places
        memory = UNLIMITED_BYTES if candidate.more else self.bounds.memory_bytes * places
        listed = listed_bound_ns(problem, memory)
        if listed is not None:
            return Answer(int(min(listed, UNREACHABLE_NS)), 0, exact=True)
        solver = solver_of(problem, memory_bytes=memory)
        found = solver.solution(0)
        self.bounds.evaluations += solver.evaluations
        bound = UNREACHABLE_NS if found.status == "infeasible" else max(solver.bound_ns, 0)
        return Answer(bound, solver.evaluations, exact=True)


def counts_by_mesh(candidates: Iterable[Candidate]) -> dict[tuple[object, ...], list[int]]:
    """Numbers of microbatches of candidates with equal shares, least first."""
    found: dict[tuple[object, ...], set[int]] = {}
    for each in candidates:
        if not each.uneven:
            found.setdefault((each.full.axes, each.schedule), set()).update((each.count, *each.more))
    return {key: sorted(counts) for key, counts in found.items()}
