"""Why a search has no plan."""

from __future__ import annotations

from autopar.ir.errors import LimitReachedError
from autopar.ir.plan import LATE
from autopar.passes.settled import settled
from autopar.passes.shortfall import shortfall
from autopar.passes.standing import Standing


def failure(standing: Standing, *, complete: bool, limit: LimitReachedError | None) -> Exception:
    """What to raise. ``complete``: whether time sufficed. ``limit``: why the first candidate was left that was too much
    to solve."""
    bounds, budget, closest = standing.bounds, standing.limits.memory_bytes, standing.closest
    late = LimitReachedError(
        f"the time limit of {standing.limits.time_limit_s:.4g} s ended the search before any plan was found: "
        "raise it, or name a mesh of fewer axes", details={"why": LATE},
    )  # fmt: skip
    if not complete:
        return late
    if closest is None:
        return limit or bounds.refused or late
    if closest.solution.status == "unknown":
        return LimitReachedError(
            f"no plan was found within the limits of effort; closest was mesh({closest.candidate.full}) at "
            f"{closest.bytes / 1e9:.4g} GB a device, {budget / 1e9:.4g} GB may be used: raise the memory budget"
        )
    model, encoded = bounds.model_of(closest.candidate), (closest.encoded, closest.pricing)
    placed, program = settled(bounds, encoded, closest.candidate, closest.solution)
    return shortfall(model, closest, placed, program, max(standing.least_bytes, budget + 1), budget)
