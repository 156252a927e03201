"""Bounds on outer choices from the operations that have most of the weights, where a model has any."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from autopar.cost_model import axis_groups
from autopar.passes.build import Encoded, Model
from autopar.passes.found import UNLIMITED_BYTES, UNREACHABLE_NS
from autopar.passes.ground import Ground
from autopar.passes.heavy import Heavy, Rest, build_heavy, heavy, rest
from autopar.passes.helper import Answer
from autopar.passes.outer import Candidate
from autopar.passes.pricing import Pricing
from autopar.passes.reducing import Load, loads, reducing_ns
from autopar.passes.solve import solver_of

if TYPE_CHECKING:
    from autopar.passes.bounds import Bounds


@dataclass(eq=False)
class HeavyBounds:
    """Each bound is worked out once. ``rests``: what is not heavy, by number of microbatches."""

    bounds: Bounds
    known: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    rests: dict[int, dict[str, Rest]] = field(default_factory=dict)

    @cached_property
    def there(self) -> bool:
        """Whether the model has such operations, and cheap bounds pay."""
        bounds = self.bounds
        return not bounds.own_only and not bounds.quick and bool(self.kept.operations)

    @cached_property
    def kept(self) -> Heavy:
        """Which operations they are."""
        return heavy(self.bounds.model)

    def beside(self, count: int) -> dict[str, Rest]:
        """What is not heavy on one device, in so many microbatches."""
        if count not in self.rests:
            model = self.bounds.model_for(None, pooled=True, alone=True)
            one = replace(self.bounds.alone("dp", 1), count=count)
            self.rests[count] = rest(model, self.bounds.ground(model, one, inner=False), count, self.kept)
        return self.rests[count]

    def build(self, model: Model, ground: Ground, count: int, *, ample: bool) -> Encoded:
        """Their problem on the mesh of ``ground``."""
        return build_heavy(model, ground, count, self.kept, self.beside(count), ample=ample)

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

    def bound_ns(self, candidate: Candidate) -> int | None:
        """From their problem alone, within the memory of all places where the number of microbatches is known.

        0 where nothing is heavy, None where the candidate cannot be placed.
        """
        if not self.there:
            return 0
        groups = axis_groups(candidate.full.axes, self.bounds.cluster)
        near = tuple(groups[axis] for axis in candidate.mesh.names)
        key = "alone", near, candidate.schedule, candidate.count, not candidate.more
        if key not in self.known:
            answer = self.bounds.asked(key, lambda: self._solved(candidate, known=not candidate.more))
            self.known[key] = None if answer is None else answer.bound_ns
        return self.known[key]

    def _solved(self, candidate: Candidate, *, known: bool) -> Answer | None:
        encoded = self.bounds.encode(candidate, candidate.schedule, ample=not known, only_heavy=True)
        if encoded is None:
            return None
        places = 1 if candidate.shape is None else candidate.shape.places
        memory = self.bounds.memory_bytes * places if known else UNLIMITED_BYTES
        solver = solver_of(encoded[0].problem, memory_bytes=memory)
        found = solver.solution(0)
        self.bounds.evaluations += solver.evaluations
        bound = UNREACHABLE_NS if found.status == "infeasible" else max(solver.bound_ns, 0)
        return Answer(bound, solver.evaluations, exact=True)
