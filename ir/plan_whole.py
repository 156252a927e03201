"""Whether the parts of a plan agree, each of which is well formed by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from autopar.ir.pipeline import PIPELINE_AXIS

if TYPE_CHECKING:
    from autopar.ir.plan import Plan

ROUNDING = 1e-9
LEVELS = (0, 1, 2, 3)


def disagreements(plan: Plan) -> Iterator[str]:
    """What does not fit together, in words."""
    devices, places = math.prod(plan.mesh.values()), plan.mesh.get(PIPELINE_AXIS, 1)
    if devices != plan.world_size:
        yield f"mesh {plan.mesh} has {devices} devices, world_size is {plan.world_size}"
    if sorted(plan.axes) != sorted(plan.mesh):
        yield f"axes {list(plan.axes)} are not those of mesh {plan.mesh}"
    if plan.lower_bound_s > plan.objective_s * (1 + ROUNDING):
        yield f"lower_bound_s {plan.lower_bound_s} is above objective_s {plan.objective_s}"
    if (places > 1) != (plan.schedule is not None):
        yield f"schedule {plan.schedule} does not suit {places} pipeline stage{'s' * (places > 1)}"
    for name, level in plan.zero.items():
        if level not in LEVELS:
            yield f"zero of {name} is {level}: levels are 0 to 3"
    for what, found in (("placements", plan.placements), ("storage", plan.storage)):
        for name, choices in found.items():
            for axis in choices:
                if axis not in plan.mesh:
                    yield f"{what} of {name} name the axis {axis}, which mesh {plan.mesh} has not"
