"""The standard recipes beside a plan: what each of them takes, by the same prices and within the same memory.

They are those of the model on its cluster, whatever the user pinned. Each is a search of its own that starts from
nothing but what no order of searches changes, so that a recipe takes the same time here and where it is asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autopar.cost_model import Cluster, CostProfile
from autopar.ir.errors import AutoparError, InfeasibleError, LimitReachedError, UnsupportedError
from autopar.ir.plan import LATE, RecipeInfo
from autopar.passes.bounds import Known
from autopar.passes.build import Model
from autopar.passes.found import UNLIMITED_BYTES, Found, Limits
from autopar.passes.recipes import RECIPES
from autopar.passes.search import search

# Why a recipe may have no plan.
NONE_FOUND = (InfeasibleError, LimitReachedError, UnsupportedError)


@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """What a recipe comes to. ``found``: its plan; where it does not fit (``why``) with memory ignored, None if it
    cannot be placed."""

    found: Found | None
    why: str = ""

    @property
    def fits(self) -> bool:
        return not self.why

    @property
    def info(self) -> RecipeInfo:
        """As the plan records it."""
        if self.found is None:
            return RecipeInfo(objective_s=None, fits=False, why=self.why)
        return RecipeInfo(
            objective_s=self.found.objective_ns / 1e9, fits=self.fits, why=self.why,
            mesh=dict(self.found.full.axes), num_microbatches=self.found.microbatches,
        )  # fmt: skip


def standards(
    model: Model, cluster: Cluster, profile: CostProfile, memory_bytes: int, known: Known,
    time_limit_s: float = math.inf,
) -> dict[str, Standard]:  # fmt: skip
    """Every recipe, by name. ``known``: of the same model. ``time_limit_s``: for all of them; those it ends have no
    plan, since what they come to is not known yet.
    """
    deadline_s = time.monotonic() + time_limit_s
    settings = model.settings
    free = replace(model, settings=replace(settings, zero=None, recompute=None, constraints=(), schedule=None))
    known = Known(known.positions) if settings.constraints else known

    def found(name: str, memory_bytes: int) -> Found:
        left_s = deadline_s - time.monotonic()
        limits = Limits(memory_bytes=memory_bytes, like=name, time_limit_s=left_s)
        made = search(free, cluster, profile, limits, known=known) if left_s > 0 else None
        if made is None or not made.complete:
            raise LimitReachedError(LATE, details={"why": LATE})
        return made

    made = {}
    for name in RECIPES:
        try:
            made[name] = Standard(found=found(name, memory_bytes))
        except NONE_FOUND as error:
            made[name] = Standard(found=_ample(found, name, error), why=_why(error))
    return made


def _ample(found: Callable[[str, int], Found], name: str, error: AutoparError) -> Found | None:
    """With memory ignored; None where that is not what is missing."""
    if "why" in error.details:
        return None
    try:
        return found(name, UNLIMITED_BYTES)
    except NONE_FOUND:
        return None


def _why(error: AutoparError) -> str:
    needed, budget = error.details.get("fits_bytes"), error.details.get("budget_bytes")
    if isinstance(needed, int) and isinstance(budget, int):
        if needed <= budget:  # of a pipeline it is the mean of its places
            return f"no cut into stages that was tried leaves each within {budget / 1e9:.4g} GB"
        return f"needs {needed / 1e9:.4g} GB on each device, {budget / 1e9:.4g} GB may be used"
    return str(error.details.get("why", str(error).splitlines()[0]))


def not_slower(found: Found, beside: Mapping[str, Standard]) -> tuple[Found, ...]:
    """The plan of a search that nothing pinned and those of recipes, as far as none is faster: what it proved stands.

    The search's own comes first.
    """
    fitting = [standard.found for standard in beside.values() if standard.fits and standard.found is not None]
    least_ns = min(one.objective_ns for one in (found, *fitting))
    return tuple(
        replace(
            one, bound_ns=min(found.bound_ns, least_ns), complete=found.complete, evaluations=found.evaluations,
            candidates=found.candidates,
        ) for one in (found, *fitting) if one.objective_ns == least_ns
    )  # fmt: skip
