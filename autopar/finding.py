"""From a prepared model to a plan, and from a plan to a program. Needs no process group, no device and no torch."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass

from autopar.arguments import Arguments
from autopar.choosing import fastest, lowered
from autopar.cost_model import axis_groups
from autopar.heap import settled_heap
from autopar.ir.errors import InfeasibleError, MismatchError
from autopar.ir.mesh import Mesh
from autopar.ir.pipeline import PIPELINE_AXIS, Mark, Pipeline
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.passes.assignment import Assignment, from_plan
from autopar.passes.bounds import Known
from autopar.passes.build import Model
from autopar.passes.candidate import with_time
from autopar.passes.comparing import not_slower, standards
from autopar.passes.conversions import Conversions
from autopar.passes.islands import warn_of_islands
from autopar.passes.lower import lower
from autopar.passes.planning import Request, fingerprint, make_plan
from autopar.passes.positions import positions
from autopar.passes.pricing import Pricing
from autopar.passes.relaxations import Question, advice
from autopar.passes.search import search
from autopar.passes.stages import cut
from autopar.passes.uneven import uneven


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A model as the passes see it.

    ``graph_nodes``: of the graph before it was folded. ``tied``: names of each parameter that has several. ``seconds``:
    how long each part took.
    """

    model: Model
    graph_nodes: int
    tied: tuple[tuple[str, ...], ...]
    seconds: dict[str, float]


def find_plan(prepared: Prepared, arguments: Arguments, *, compare: bool = False) -> tuple[Plan, Program]:
    """Search and lower. ``compare``: with the standard recipes; one that is faster is taken if nothing is pinned,
    and of those that are as fast the one that the simulator finds fastest.

    Raises InfeasibleError, LimitReachedError, UsageError.
    """
    with settled_heap():
        return _find_plan(prepared, arguments, compare=compare)


def _find_plan(prepared: Prepared, arguments: Arguments, *, compare: bool) -> tuple[Plan, Program]:
    start, deadline_s = time.perf_counter(), time.monotonic() + arguments.time_limit
    given, where = prepared.model, (arguments.cluster, arguments.profile)
    marks = positions(given.graph, given.rules, given.settings.inputs)
    known = Known(marks)
    try:
        found = search(given, *where, arguments.limits(), progress=arguments.progress, known=known)
    except InfeasibleError as error:
        raise advised(error, given, arguments, deadline_s) from None
    after_solve = time.perf_counter()
    beside = (
        standards(given, *where, arguments.memory_bytes, known, arguments.time_limit)
        if compare and not arguments.like else {}
    )  # fmt: skip
    rivals = not_slower(found, beside) if arguments.free else (found,)
    before = time.perf_counter()
    own = lowered(rivals[0], marks)
    own_s = time.perf_counter() - before
    found, assignment, program = fastest([own, *(lowered(one, marks) for one in rivals[1:])])
    after_recipes = time.perf_counter() - own_s
    model = found.model
    request = Request(
        name=arguments.name, mixed_precision=arguments.mixed_precision, memory_bytes=arguments.memory_bytes,
        tied=prepared.tied, graph_nodes=prepared.graph_nodes, rng=arguments.rng, asked=arguments.asked(),
        recipes={name: standard.info for name, standard in beside.items()},
    )  # fmt: skip
    plan = make_plan(model, found, assignment, program, request)
    warn_of_islands(model, assignment, found.pricing, found.microbatches)
    end = time.perf_counter()
    seconds = {**prepared.seconds, "solve_s": after_solve - start, "lower_s": end - after_recipes}
    search_facts = {
        **seconds, "total_s": sum(seconds.values()), "recipes_s": after_recipes - after_solve,
        "peak_rss_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024), **(plan.search or {}),
    }  # fmt: skip
    return plan.model_copy(update={"search": search_facts, "plan_sha256": plan.sha256}), program


def advised(error: InfeasibleError, model: Model, arguments: Arguments, deadline_s: float) -> InfeasibleError:
    """The error with the limits that conflict and the changes that work."""
    needed, fits = error.details.get("needed_bytes"), error.details.get("fits_bytes")
    if not isinstance(needed, int) or not isinstance(fits, int):
        return error
    arguments.progress("nothing fits; trying what would")
    question = Question(model=model, cluster=arguments.cluster, profile=arguments.profile, limits=arguments.limits())
    found = advice(question, fits, needed, deadline_s)
    tried = "what works, each tried: " if found.complete else "what works of what there was time to try: "
    lines = [f"in conflict: {', '.join(found.conflict)}", tried + ", ".join(found.changes)]
    details = {**error.details, "conflict": list(found.conflict), "relaxations": list(found.changes)}
    return InfeasibleError("\n".join((str(error), *lines)), details=details)


def pipeline_of(plan: Plan, program: Program) -> Pipeline | None:
    """The stages of a plan's program; None where it has no pipeline."""
    if plan.schedule is None:
        return None
    return Pipeline(mesh=mesh_of(plan), schedule=plan.schedule, stages=cut(program, marks_of(plan)))


def mesh_of(plan: Plan) -> Mesh:
    """That of all processes, pipeline included."""
    return Mesh(tuple((axis, plan.mesh[axis]) for axis in plan.axes))


def marks_of(plan: Plan) -> list[Mark]:
    """Where the stages begin in the plan's program."""
    return [Mark.parse(stage.mark) for stage in plan.stages]


def lower_plan(prepared: Prepared, plan: Plan, arguments: Arguments) -> tuple[Program, Assignment]:
    """The program of a plan for this model. Raises MismatchError with the difference."""
    check_fit(prepared, plan)
    model = prepared.model
    full = mesh_of(plan)
    mesh = Mesh(tuple(axis for axis in full.axes if axis[0] != PIPELINE_AXIS))
    pricing = Pricing(
        mesh=with_time(mesh, plan.num_microbatches), cluster=arguments.cluster, profile=arguments.profile,
        groups=axis_groups(full.axes, arguments.cluster), uneven=bool(plan.shares),
    )  # fmt: skip
    assignment = from_plan(plan.assignment, model, pricing.mesh)
    program = lower(model, assignment, Conversions(pricing), plan.num_microbatches)
    return shared(program, plan), assignment


def shared(program: Program, plan: Plan) -> Program:
    """The program with the plan's unequal shares, if it has any. Raises UnsupportedError where it cannot have them."""
    return uneven(program, next(iter(plan.shares.values()))) if plan.shares else program


def check_fit(prepared: Prepared, plan: Plan) -> None:
    """Raise MismatchError naming the first thing in which the model differs from the plan's."""
    ours = fingerprint(prepared.model, prepared.tied)
    for what in ("parameters", "inputs"):
        _same_mapping(what[:-1], getattr(plan.fingerprint, what), getattr(ours, what))
    _same_rules(plan.fingerprint.rules, ours.rules)
    if plan.fingerprint.tied != ours.tied:
        raise MismatchError(f"tied parameters differ: the plan has {plan.fingerprint.tied}, the model {ours.tied}")
    if plan.fingerprint.graph_sha256 != ours.graph_sha256:
        raise MismatchError(
            "the model computes something else than the one that was planned (same parameters, another graph); "
            "make the plan again"
        )


def _same_rules(planned: Mapping[str, str], here: Mapping[str, str]) -> None:
    for target in (*planned, *here):
        if planned.get(target) != here.get(target):
            raise MismatchError(
                f"rule of {target}: the plan was made with {_rule(planned.get(target))}, this process has "
                f"{_rule(here.get(target))}; call autopar.register_rule alike wherever a plan is made and run, "
                "or make the plan again"
            )


def _rule(text: str | None) -> str:
    return "none registered" if text is None else f"`{text}`"


def _same_mapping(what: str, planned: Mapping[str, str], given: Mapping[str, str]) -> None:
    for name in (*planned, *given):
        if planned.get(name) != given.get(name):
            raise MismatchError(
                f"{what} {name}: the plan was made for {planned.get(name, 'none of that name')}, "
                f"the model has {given.get(name, 'none of that name')}"
            )
