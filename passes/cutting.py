"""How a placement of a pipeline's model is cut into stages, and what each place then recomputes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from autopar.cost_model import optimizer_state_bytes
from autopar.ir.constraints import Constraint
from autopar.ir.errors import InfeasibleError
from autopar.ir.program import Parameter, Program
from autopar.passes.build import Encoded, Model
from autopar.passes.extents import layers
from autopar.passes.found import UNLIMITED_BYTES
from autopar.passes.live import holding
from autopar.passes.outer import Candidate
from autopar.passes.pipelining import Arrangement, Shape, Unit, arrange
from autopar.passes.placements import Placements
from autopar.passes.placewise import by_place, remeasured
from autopar.passes.pricing import Pricing
from autopar.passes.settled import settled
from autopar.passes.solve import Solution
from autopar.passes.stage_account import copies_bytes
from autopar.passes.stages import cut as stages_of
from autopar.passes.standing import Standing
from autopar.passes.tied import tied
from autopar.passes.units import units_of

TRIES = 2  # what places hold copies of is known when they are cut
FINER = 4  # halvings of what lies between the mean place and the fullest one


@dataclass(frozen=True, eq=False)
class Cutting:
    """Cuts placements of one candidate. ``one``: its problem, holding one microbatch."""

    standing: Standing
    candidate: Candidate
    shape: Shape
    one: Encoded
    pricing: Pricing

    @cached_property
    def model(self) -> Model:
        return self.standing.bounds.model_for(self.shape.schedule)

    @property
    def by_calls(self) -> bool:
        """Whether stages begin at calls of blocks, one stage at each place."""
        return self.shape.loops == 1 and layers(self.model) >= self.shape.stages

    @cached_property
    def none(self) -> Encoded:
        return holding(self.one, 0)

    @cached_property
    def _placements(self) -> Placements | None:
        """A quick search takes the solution's."""
        lives = tuple(dict.fromkeys((self.shape.most_live, self.shape.mean_live)))
        most = self.standing.bounds.most_joined
        return None if self.standing.limits.quick else Placements(self.one, lives, most)

    @property
    def pins(self) -> tuple[Constraint, ...]:
        return tuple(constraint for constraint in self.model.settings.constraints if constraint.kind == "stage")

    def placed(
        self, solution: Solution, encoded: Encoded
    ) -> tuple[Solution, tuple[Unit, ...], Arrangement | None]:
        """The fastest cut of a solution of ``encoded``, or of what it becomes where each place recomputes what it must.

        Raises InfeasibleError naming stage constraints where only these leave none.
        """
        limit = self.standing.limits.memory_bytes
        units, cut, copies = self.cut(solution, encoded)
        best, fits = solution, cut is not None and max(cut.bytes) <= limit
        for _ in range(TRIES if self.by_calls else 0):
            rooms = [limit - size for size in copies]
            again = by_place(
                self.none, self.one, solution, units, self.shape, self.pricing, rooms, self._placements
            )
            if again is None:
                break
            _, other, found = self.cut(again, encoded)
            if other is not None and max(other.bytes) <= limit:
                if cut is None or not fits or other.objective_ns < cut.objective_ns:
                    best, cut, fits = remeasured(encoded.problem, again), other, True
                break
            if other is None or found == copies:
                break
            copies = found
        return best, units, cut

    def cut(
        self, solution: Solution, encoded: Encoded
    ) -> tuple[tuple[Unit, ...], Arrangement | None, tuple[int, ...]]:
        """What a solution may be cut into, its fastest cut, and bytes of what each place has a copy of."""
        limit, shape, pins = self.standing.limits.memory_bytes, self.shape, self.pins
        program, units = self._units(solution, encoded)
        cut = arrange(units, shape, self.pricing, limit, pins)
        if cut is None and pins and arrange(units, shape, self.pricing, limit) is not None:
            texts = " and ".join(map(str, pins))
            raise InfeasibleError(
                f"{texts}: no cut into {shape.stages} stages has every part where it is to be; parts follow each "
                "other as the model runs them",
                details={"conflict": list(map(str, pins))},
            )
        if cut is None:
            return units, None, (0,) * shape.places
        stages = stages_of(program, cut.marks)
        copies = copies_bytes(stages, shape, self._state_bytes)
        again_ns = sum(one.time_ns(self.pricing) for one in tied(program, stages, shape))
        whole = tuple(a + b for a, b in zip(cut.bytes, copies, strict=True))
        return units, replace(cut, objective_ns=cut.objective_ns + again_ns, bytes=whole), copies

    def fullest_bytes(self, solution: Solution, encoded: Encoded) -> int:
        """What the fullest place would hold of a solution that does not fit, of cuts that spread it well; 0 where it
        cannot be cut at all."""
        program, units = self._units(solution, encoded)
        found = arrange(units, self.shape, self.pricing, UNLIMITED_BYTES, self.pins)
        if found is None:
            return 0
        low = sum(found.bytes) // len(found.bytes)
        for _ in range(FINER):
            cut = arrange(units, self.shape, self.pricing, middle := (low + max(found.bytes)) // 2, self.pins)
            low, found = (middle, found) if cut is None else (low, cut)
        copies = copies_bytes(stages_of(program, found.marks), self.shape, self._state_bytes)
        return max(a + b for a, b in zip(found.bytes, copies, strict=True))

    def _units(self, solution: Solution, encoded: Encoded) -> tuple[Program, tuple[Unit, ...]]:
        """A solution's program, and what that may be cut into."""
        _, program = settled(self.standing.bounds, (encoded, self.pricing), self.candidate, solution)
        anywhere = layers(self.model) < self.shape.stages
        return program, units_of(self.model, program, solution, self.none, self.one, anywhere=anywhere)

    def _state_bytes(self, parameter: Parameter) -> int:
        local, bounds = parameter.layout.local_shape(parameter.type.shape), self.standing.bounds
        return optimizer_state_bytes(bounds.model.settings.optimizer, local, parameter.type.dtype, bounds.profile)
