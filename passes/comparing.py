"""The standard recipes beside a plan: what each of them takes, by the same prices and within the same memory.

They are those of the model on its cluster, whatever the user pinned. Each is a search of its own that starts from
nothing but what no order of searches changes, so that a recipe takes the same time here and where it is asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from autopar.cost_model import Cluster, CostProfile
from autopar.ir.errors import AutoparError, InfeasibleError, LimitReachedError, UnsupportedError
from autopar.ir.plan import LATE, RecipeInfo
from autopar.passes.bounds import Known
from autopar.passes.build import Model
from autopar.passes.found import UNLIMITED_BYTES, Found, Limits
from autopar.passes.helper import BusyError, Helper, Told
from autopar.passes.recipes import RECIPES
from autopar.passes.search import search
from autopar.passes.shortfall import told_apart

# Why a recipe may have no plan.
NONE_FOUND = (InfeasibleError, LimitReachedError, UnsupportedError)

STUCK_S = 300.0  # a helper that works on one recipe for so long is given up


class Comes(NamedTuple):
    """What a recipe comes to: the time of its plan, and what is said of it. Of one that does not fit with memory
    ignored, None if it cannot be placed."""

    objective_ns: int | None
    info: RecipeInfo


@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """A recipe beside a plan. ``found``: its plan, which may have to be worked out again."""

    comes: Comes
    found: Callable[[], Found]

    @property
    def info(self) -> RecipeInfo:
        """As the plan records it."""
        return self.comes.info


def standards(
    model: Model, cluster: Cluster, profile: CostProfile, memory_bytes: int, known: Known,
    time_limit_s: float = math.inf,
) -> dict[str, Standard]:  # fmt: skip
    """Every recipe, by name. ``known``: of the same model. ``time_limit_s``: for all of them; those it ends have no
    plan, since what they come to is not known yet. Where there is a second core a helper begins with the first.
    """
    deadline_s = time.monotonic() + time_limit_s
    settings = model.settings
    free = replace(model, settings=replace(settings, zero=None, recompute=None, constraints=(), schedule=None))
    known = Known(known.positions) if settings.constraints else known
    here: dict[str, Found] = {}

    def found(name: str, memory_bytes: int, left_s: float) -> Found:
        limits = Limits(memory_bytes=memory_bytes, like=name, time_limit_s=left_s)
        made = search(free, cluster, profile, limits, known=known) if left_s > 0 else None
        if made is None or not made.complete:
            raise LimitReachedError(LATE, details={"why": LATE})
        return made

    def comes(name: str) -> Comes:
        try:
            here[name] = found(name, memory_bytes, deadline_s - time.monotonic())
        except NONE_FOUND as error:
            return _unfit(lambda: found(name, UNLIMITED_BYTES, deadline_s - time.monotonic()), error)
        return Comes(here[name].objective_ns, _info(here[name]))

    def again(name: str) -> Found:
        return here.get(name) or found(name, memory_bytes, math.inf)

    helper, made = Helper(stuck_s=STUCK_S), {}
    try:
        helper.start(lambda: _forwards(helper, comes), Told())
        for name in reversed(RECIPES):  # the last one is most often as fast as the plan, and then asked for
            answer, _ = helper.asked(name, partial(comes, name))
            made[name] = Standard(comes=answer, found=partial(again, name))
    finally:
        helper.stop()
    return {name: made[name] for name in RECIPES}


def _forwards(helper: Helper, comes: Callable[[str], Comes]) -> None:
    """In the helper: all recipes from the first one, up to that which is worked out already."""
    with suppress(BusyError):
        for name in RECIPES:
            helper.asked(name, partial(comes, name))


def _unfit(ample: Callable[[], Found], error: AutoparError) -> Comes:
    """``ample``: the recipe with memory ignored, which is asked where that is what is missing."""
    if "why" not in error.details:
        with suppress(*NONE_FOUND):
            found = ample()
            return Comes(found.objective_ns, _info(found, _why(error)))
    return Comes(None, RecipeInfo(objective_s=None, fits=False, why=_why(error)))


def _info(found: Found, why: str = "") -> RecipeInfo:
    return RecipeInfo(
        objective_s=found.objective_ns / 1e9, fits=not why, why=why, mesh=dict(found.full.axes),
        num_microbatches=found.microbatches,
    )  # fmt: skip


def _why(error: AutoparError) -> str:
    needed, budget = error.details.get("fits_bytes"), error.details.get("budget_bytes")
    if isinstance(needed, int) and isinstance(budget, int):
        if needed <= budget:  # of a pipeline it is the mean of its places
            return f"no cut into stages that was tried leaves each within {budget / 1e9:.4g} GB"
        return f"needs {told_apart(needed, budget)}"
    return str(error.details.get("why", str(error).splitlines()[0]))


def not_slower(found: Found, beside: Mapping[str, Standard]) -> tuple[Found, ...]:
    """The plan of a search that nothing pinned and those of recipes, as far as none is faster: what it proved stands.

    The search's own comes first.
    """
    fitting = [standard for standard in beside.values() if standard.info.fits]
    times = [standard.comes.objective_ns for standard in fitting if standard.comes.objective_ns is not None]
    least_ns = min([found.objective_ns, *times])
    rivals = [standard.found() for standard in fitting if standard.comes.objective_ns == least_ns]
    return tuple(
        replace(
            one, bound_ns=min(found.bound_ns, least_ns), complete=found.complete, evaluations=found.evaluations,
            candidates=found.candidates,
        ) for one in (found, *rivals) if one.objective_ns == least_ns
    )  # fmt: skip
