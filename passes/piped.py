"""Pipelines in the search: their bounds within memory, and their plans.

The model is placed on the devices of one stage within the memory of all, then cut. What the places hold differs: of
1F1B the first has as many microbatches in flight as there are places, the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autopar.cost_model import optimizer_state_bytes
from autopar.ir.errors import InfeasibleError, UnsupportedError
from autopar.ir.layout import Layout
from autopar.ir.program import Parameter
from autopar.passes.build import Encoded
from autopar.passes.extents import layers
from autopar.passes.live import holding
from autopar.passes.outer import Candidate, Rung
from autopar.passes.pipelining import Shape, arrange, transfer_ns
from autopar.passes.pricing import Pricing, local_bytes
from autopar.passes.settled import settled
from autopar.passes.shortfall import Closest
from autopar.passes.solve import Model, Places, Solution, apart, between, staged_bound_ns
from autopar.passes.stage_account import copies_bytes
from autopar.passes.stages import belongs, dependence
from autopar.passes.standing import LEANER, Best, Standing
from autopar.passes.uniform import uniform
from autopar.passes.units import units_of

# Places that are told apart in a bound: those between hold as little as the last of them.
GROUPS = 3


@dataclass(eq=False)
class Pipelines:
    """Bounds and settles pipelines; ``begun``: their problems, between the two."""

    standing: Standing
    begun: dict[Candidate, tuple[Encoded, Pricing]] = field(default_factory=dict)

    def limited(self, candidate: Candidate, shape: Shape) -> Candidate | None:
        """The candidate with a bound within memory; None where it cannot be placed or does not fit."""
        standing = self.standing
        made = standing.bounds.encode(candidate, shape.schedule)
        if made is None:
            return None
        above = standing.above(candidate)
        bound = max(candidate.bound_ns, self._staged_ns(*made, shape))
        if above is None or (bound < above and len(candidate.mesh.axes) == 1):  # others cost too much
            least = max(1, int(shape.live(shape.places - 1)))
            solver = standing.solver(holding(made[0], least), standing.limits.memory_bytes * shape.places)
            found = standing.solved(solver, 0, above)
            if found.status == "infeasible":
                self._near(candidate, shape, found, made)
                return None
            bound = max(bound, 0 if found.status == "unknown" else found.bound_ns)
        again = replace(candidate, rung=Rung.LIMITED, bound_ns=bound)
        self.begun[again] = made
        return again

    def _staged_ns(self, encoded: Encoded, pricing: Pricing, shape: Shape) -> int:
        """Time of all work on one place's devices, each place within its own memory."""
        places, standing = shape.places, self.standing
        arriving = self._arriving_bytes(encoded, shape)
        sent = 2 * shape.microbatches * transfer_ns(arriving, pricing)
        loose = replace(encoded, problem=apart(encoded.problem))  # costs no more, and is much smaller
        none, one = Model(holding(loose, 0).problem), Model(loose.problem)
        groups = []
        for own in _parts(places):
            ends = 1 if own[0] == 0 or own[-1] == places - 1 else 2  # that others are sent to and received from
            groups.append(Places(
                model=between(none, one, max(1, int(shape.live(own[-1])))), count=len(own), sent_ns=ends * sent,
                memory_bytes=standing.limits.memory_bytes - ends * shape.microbatches * arriving,
            ))  # fmt: skip
        return places * staged_bound_ns(groups, standing.bounds.price)

    def _arriving_bytes(self, encoded: Encoded, shape: Shape) -> int:
        """Least bytes that go from one stage to the next with a microbatch: what goes into a call, but the first.

        0 where stages may begin elsewhere.
        """
        model = self.standing.bounds.model
        if layers(model) < shape.stages:
            return 0
        graph, depends = model.graph, dependence(model.graph.nodes)
        least: dict[str, int] = {}
        for variable in encoded.variables[graph.name]:
            if variable.kind == "carried":
                kind = model.facts[graph.name, variable.name].type
                layouts = (value for value in variable.values if isinstance(value, Layout))
                least[variable.name] = min(local_bytes(layout, kind) for layout in layouts)
        known = {value.name for node in graph.nodes if belongs(node, depends) for value in node.results}
        entering = [
            sum(least[name] for name in call.operands[: int(str(call.attr("carried")))] if name in known and name)
            for call in encoded.calls[1:]
        ]  # fmt: skip
        return min([*entering, *(sum(least[value.name] for value in call.results) for call in encoded.calls)])

    def settle(self, candidate: Candidate, shape: Shape) -> bool:
        """As ``_settle``. What nobody asked for and cannot be cut is left out. Raises UnsupportedError otherwise."""
        standing, objective_ns = self.standing, None
        try:
            objective_ns = self._settle(candidate, shape)
        except (UnsupportedError, InfeasibleError) as error:
            if not standing.bounds.searched:
                raise
            standing.bounds.refused = standing.bounds.refused or error
        standing.done(candidate, candidate.step_bound_ns, objective_ns)
        return objective_ns is not None

    def _settle(self, candidate: Candidate, shape: Shape) -> int | None:
        """Place the model for one stage's devices within the memory of all stages, then cut it; the time of that.

        Every call is taken to hold as many microbatches as the first stage does. A cut that does not fit asks for a
        leaner placement.
        """
        standing = self.standing
        made = self.begun.pop(candidate, None) or standing.bounds.encode(candidate, shape.schedule)
        if made is None:
            return None
        one, pricing = made
        none, encoded = holding(one, 0), holding(one, shape.most_live)
        model, budget = standing.bounds.model_for(shape.schedule), standing.limits.memory_bytes * shape.places
        pins = [constraint for constraint in model.settings.constraints if constraint.kind == "stage"]
        for _ in range(LEANER):
            solution = standing.solved(standing.solver(encoded, budget), int(not standing.limits.quick))
            if not solution.found or solution.bytes > budget:
                self._near(candidate, shape, solution, (encoded, pricing))
                return None
            solution = uniform(encoded.problem, solution, budget)
            _, program = settled(standing.bounds, (encoded, pricing), candidate, solution)
            units = units_of(model, program, solution, none, one, anywhere=layers(model) < shape.stages)
            cut = arrange(units, shape, pricing, standing.limits.memory_bytes, pins)
            if cut is None and pins and arrange(units, shape, pricing, standing.limits.memory_bytes) is not None:
                texts = " and ".join(map(str, pins))
                raise InfeasibleError(
                    f"{texts}: no cut into {shape.stages} stages has every part where it is to be; parts follow each "
                    "other as the model runs them",
                    details={"conflict": list(map(str, pins))},
                )
            if cut is not None:
                copies = copies_bytes(program, cut.marks, shape, self._state_bytes)
                cut = replace(cut, bytes=tuple(a + b for a, b in zip(cut.bytes, copies, strict=True)))
            if cut is not None and max(cut.bytes) <= standing.limits.memory_bytes:
                if standing.best is None or cut.objective_ns * candidate.handicap < standing.best_ns:
                    standing.take(Best(candidate, solution, encoded, pricing, cut.objective_ns, cut))
                return cut.objective_ns
            if len(units) < shape.stages:
                standing.bounds.refused = UnsupportedError(
                    f"{shape.stages} pipeline stages, but the model has only {len(units)} parts to cut it into"
                )
                return None
            self._near(candidate, shape, solution, (encoded, pricing))
            budget = int(min(budget, solution.bytes) * 0.93)
        return None

    def _near(
        self, candidate: Candidate, shape: Shape, solution: Solution, encoded: tuple[Encoded, Pricing]
    ) -> None:
        share = -(-solution.bytes // shape.places)
        self.standing.near(Closest(candidate, solution, *encoded, share), solution.least_bytes // shape.places)

    def _state_bytes(self, parameter: Parameter) -> int:
        local, bounds = parameter.layout.local_shape(parameter.type.shape), self.standing.bounds
        return optimizer_state_bytes(bounds.model.settings.optimizer, local, parameter.type.dtype, bounds.profile)


def _parts(places: int) -> list[range]:
    """The first place, the last one, and those between in at most ``GROUPS`` runs of neighbours."""
    between = range(1, places - 1)
    step = max(1, -(-len(between) // GROUPS))
    runs = [between[first : first + step] for first in range(0, len(between), step)]
    return [range(1), *runs, range(places - 1, places)]
