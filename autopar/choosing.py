"""What was found with its program, and which of several plans that the objective finds as fast is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from autopar.cost_model.simulator import simulate
from autopar.ir.pipeline import Pipeline
from autopar.ir.program import Program
from autopar.passes.assignment import Assignment
from autopar.passes.conversions import Conversions
from autopar.passes.found import Found
from autopar.passes.lower import lower
from autopar.passes.outputs import place_outputs
from autopar.passes.positions import Positions
from autopar.passes.stages import cut
from autopar.passes.uneven import uneven

Lowered: TypeAlias = tuple[Found, Assignment, Program]


def lowered(found: Found, marks: Positions) -> Lowered:
    """What was found with its outputs placed, and its program."""
    conversions = Conversions(found.pricing)
    assignment = place_outputs(found.model, found.assignment, marks, conversions)
    program = lower(found.model, assignment, conversions, found.microbatches)
    return found, assignment, program if found.paced is None else uneven(program, found.paced.shares)


def fastest(rivals: Sequence[Lowered]) -> Lowered:
    """The one that the simulator finds fastest, the first of several; it is not asked where all are one program."""
    different = [one for at, one in enumerate(rivals) if one[2] not in [other[2] for other in rivals[:at]]]
    return different[0] if len(different) == 1 else min(different, key=simulated_s)


def simulated_s(one: Lowered) -> float:
    """Seconds of a step by the simulator."""
    found, _, program = one
    pipeline, pricing = None, found.pricing
    if found.pipeline is not None:
        shape, arranged = found.pipeline
        pipeline = Pipeline(mesh=found.full, schedule=shape.schedule, stages=cut(program, arranged.marks))
    optimizer = found.model.settings.optimizer
    return simulate(
        program, pricing.cluster, pricing.profile, optimizer=optimizer, pipeline=pipeline, detail="passes"
    ).step_s
