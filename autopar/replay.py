"""A plan's model, arguments and program from the plan alone: no module, no trace, no torch."""

from __future__ import annotations

from typing import Any

from autopar.arguments import Arguments, check
from autopar.cost_model import Cluster, load_profile
from autopar.finding import Prepared, lower_plan, pipeline_of
from autopar.ir.constraints import Constraint
from autopar.ir.errors import MismatchError
from autopar.ir.pipeline import Pipeline
from autopar.ir.plan import Plan
from autopar.ir.plan_origin import Asked, Origin
from autopar.ir.program import Program
from autopar.ir.text import parse_graph
from autopar.passes.origin import model_of
from autopar.passes.prepare import input_dims


def keywords_of(plan: Plan, *, profile: Any = None) -> dict[str, Any]:
    """The keywords of ``arguments.check`` that the plan was made with; ``profile`` as ``autopar.plan`` takes it.

    Raises MismatchError where the profile is another one than the plan was priced with, or the plan keeps too little.
    """
    asked, _ = _kept(plan)
    found, pinned = load_profile(profile), asked.mesh
    if pinned is not None:  # keys of a JSON object have no order, axes have
        pinned = {axis: pinned[axis] for axis in (*plan.axes, *pinned) if axis in pinned}
    if found.sha256 != plan.profile.sha256:
        raise MismatchError(
            f"the plan was priced with profile {plan.profile.name} ({plan.profile.sha256[:12]}), this is {found.name} "
            f"({found.sha256[:12]}): give the plan's own with --profile, or make the plan again"
        )
    return {
        "cluster": Cluster.from_dict(plan.cluster), "profile": found, "mesh": pinned,
        "constraints": tuple(map(Constraint.parse, asked.constraints)), "memory_budget": asked.memory_bytes,
        "optimizer": plan.optimizer, "mixed_precision": plan.mixed_precision,
        "num_microbatches": asked.num_microbatches, "schedule": asked.schedule, "zero": asked.zero,
        "recompute": asked.recompute, "rng": plan.rng, "like": asked.like,
        "name": plan.model,
        "sizes": {name: size for name in ("batch_size", "seq_len", "layers") if (size := getattr(asked, name))},
    }  # fmt: skip


def prepared_of(plan: Plan, arguments: Arguments) -> Prepared:
    """The model that was planned, with what ``arguments`` leave free. Raises MismatchError as ``keywords_of``."""
    _, origin = _kept(plan)
    settings = arguments.settings(input_dims(parse_graph(origin.graph)))
    model = model_of(origin, plan.fingerprint.parameters, settings)
    return Prepared(model=model, graph_nodes=plan.graph.nodes, tied=plan.fingerprint.tied, seconds={})


def program_of(plan: Plan, *, profile: Any = None) -> tuple[Program, Pipeline | None, Arguments]:
    """The plan's program, its stages if it has any, and the arguments that it was made with."""
    pinned = {"mesh": plan.mesh, "schedule": plan.schedule, "like": None}
    arguments = check(**{**keywords_of(plan, profile=profile), **pinned})
    program, _ = lower_plan(prepared_of(plan, arguments), plan, arguments)
    return program, pipeline_of(plan, program), arguments


def _kept(plan: Plan) -> tuple[Asked, Origin]:
    if plan.asked is None or plan.origin is None:
        raise MismatchError(
            "the plan does not hold the graph that it was made from, since an older version of autopar wrote it: make "
            "the plan again"
        )
    return plan.asked, plan.origin
