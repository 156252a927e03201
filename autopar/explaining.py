"""Why a plan is as it is: the meshes that lost, and every other way to use a parameter, each forced in a search."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autopar.arguments import check
from autopar.finding import find_plan
from autopar.ir.constraints import Constraint
from autopar.ir.errors import InfeasibleError, LimitReachedError, UnsupportedError, UsageError
from autopar.ir.pipeline import PIPELINE_AXIS
from autopar.ir.plan import Plan
from autopar.ir.types import TensorType
from autopar.passes.candidate import DATA_AXES
from autopar.passes.found import Tried
from autopar.passes.patterns import starred
from autopar.passes.search import search
from autopar.replay import keywords_of, prepared_of

# The axis that a parameter may be split over on meshes that have no such axis yet.
SPLITTING = "tp"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A way to use a parameter, and what the best plan costs that has it.

    ``constraint``: what forces it, as ``--constraint`` takes it. ``mesh``: pinned, None where the search chose it.
    ``objective_s`` is None where there is no such plan; ``why`` says so. ``found``: the mesh of that plan.
    """

    constraint: str
    mesh: Mapping[str, int] | None
    objective_s: float | None
    found: Mapping[str, int] | None = None
    why: str = ""

    def options(self) -> str:
        """What forces it on the command line."""
        pinned = "" if self.mesh is None else f"--mesh {','.join(f'{a}={n}' for a, n in self.mesh.items())} "
        return f"{pinned}--constraint '{self.constraint}'"


@dataclass(frozen=True, kw_only=True)
class Explained:
    """``chosen``: placements as used and as kept, by axis; ``others``: the fastest first, what is impossible last."""

    parameter: str
    type: str
    count: int
    used: Mapping[str, str]
    kept: Mapping[str, str]
    objective_s: float
    others: tuple[Choice, ...]

    @property
    def runner_up(self) -> Choice | None:
        """The fastest other way; None if there is none."""
        return next((choice for choice in self.others if choice.objective_s is not None), None)

    def document(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def meshes(
    plan: Plan, *, profile: Any = None, time_limit: float = 60.0, progress: Callable[[str], None] = lambda _: None,
) -> list[Tried]:  # fmt: skip
    """What the search knows of each mesh, one entry a mesh, schedule and kind of shares, the least bound first.

    It searches again: a plan keeps only what was chosen.
    """
    arguments = check(**keywords_of(plan, profile=profile), time_limit=time_limit, progress=progress)
    model = prepared_of(plan, arguments).model
    found = search(model, arguments.cluster, arguments.profile, arguments.limits(), progress=progress)
    best: dict[tuple[object, ...], Tried] = {}
    for tried in sorted(found.tried, key=lambda t: (t.bound_ns, t.full.axes, t.microbatches)):
        best.setdefault((tried.full.axes, tried.schedule, tried.uneven), tried)
    return list(best.values())


def explain(
    plan: Plan, name: str, *, profile: Any = None, time_limit: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Explained]:  # fmt: skip
    """One entry for each parameter that ``name`` means: its name, a pattern, or the module that has it.

    Layers of a repeated block stand together. Raises UsageError with the nearest names where there is none.
    """
    keywords = {**keywords_of(plan, profile=profile), "time_limit": time_limit, "progress": progress}
    return [_explained(plan, pattern, keywords) for pattern in parameters_of(plan, name)]


def parameters_of(plan: Plan, name: str) -> list[str]:
    """The keys of ``plan.placements`` that ``name`` means. Raises UsageError with the nearest names."""
    found = [
        pattern for pattern in plan.placements
        if any(_is_below(key, name) for key in (pattern, *_members(plan, pattern)))
    ]  # fmt: skip
    if not found:
        near = difflib.get_close_matches(name, [*plan.placements, *plan.fingerprint.parameters], n=3, cutoff=0.0)
        raise UsageError(f"{name}: the plan places no such parameter; the nearest are {', '.join(near)}")
    return found


def _is_below(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.") or fnmatch.fnmatchcase(key, name)


def _members(plan: Plan, pattern: str) -> list[str]:
    return [fqn for fqn in plan.fingerprint.parameters if pattern in (fqn, starred(fqn))]


def _explained(plan: Plan, pattern: str, keywords: Mapping[str, Any]) -> Explained:
    members = _members(plan, pattern)
    kind = plan.fingerprint.parameters[members[0]]
    used = plan.placements[pattern]
    others = [
        _priced(plan, constraint, axis, keywords) for constraint, axis in _others(plan, pattern, TensorType.parse(kind))
    ]
    return Explained(
        parameter=pattern, type=kind, count=len(members), used=used, kept=plan.storage.get(pattern, used),
        objective_s=plan.objective_s,
        others=tuple(sorted(others, key=lambda c: (c.objective_s is None, c.objective_s or 0.0, c.constraint))),
    )  # fmt: skip


def _others(plan: Plan, pattern: str, kind: TensorType) -> Iterator[tuple[Constraint, str | None]]:
    """Every way that the plan does not take: whole, or split in a dim over an axis that may split parameters."""
    used = plan.placements[pattern]
    splits = {axis: text for axis, text in used.items() if text.startswith("S")}
    if splits:
        yield Constraint(pattern), None
    axes = [axis for axis in plan.axes if axis not in (*DATA_AXES, PIPELINE_AXIS)] or [SPLITTING]
    for axis in axes:
        for dim in range(len(kind.shape)):
            if splits.get(axis, "").split("/")[0] != f"S({dim})":
                yield Constraint(pattern, dim, axis), axis


def _priced(plan: Plan, constraint: Constraint, axis: str | None, keywords: Mapping[str, Any]) -> Choice:
    """On the plan's own mesh, where that has the axis; else on any that the user left free."""
    own = {name: plan.mesh[name] for name in plan.axes}
    mesh = own if axis is None or axis in own else keywords["mesh"]
    arguments = check(**{**keywords, "mesh": mesh, "constraints": (*keywords["constraints"], constraint)})
    arguments.progress(f"trying {constraint}")
    text = str(constraint)
    try:
        found, _ = find_plan(prepared_of(plan, arguments), arguments)
    except (InfeasibleError, UnsupportedError, LimitReachedError, UsageError) as error:
        return Choice(constraint=text, mesh=mesh, objective_s=None, why=str(error).splitlines()[0])
    return Choice(constraint=text, mesh=mesh, objective_s=found.objective_s, found=dict(found.mesh))
