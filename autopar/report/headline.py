"""What a reader should know first: how fast, how sure, and with what settings."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cli.tables import percent, seconds, size
from autopar.cost_model import Cluster
from autopar.ir.plan import Plan
from autopar.report.axes import mesh_text


@dataclass(frozen=True, kw_only=True)
class Headline:
    """``figures``: (name, value, what it means); ``facts``: (name, value)."""

    model: str
    cluster: str
    figures: tuple[tuple[str, str, str], ...]
    standing: str
    facts: tuple[tuple[str, str], ...]
    sha256: str


def headline(plan: Plan) -> Headline:
    mesh = mesh_text([(name, plan.mesh[name]) for name in plan.axes])
    devices = f"{plan.world_size} device{'s' * (plan.world_size != 1)}"
    sure = (
        "proven optimal: no plan that the options allow is faster" if plan.proven_optimal
        else f"not proven optimal ({plan.status}): a plan {percent(plan.gap)} faster may exist"
    )  # fmt: skip
    repeats = len(plan.stages) + 1
    facts = (
        ("microbatches", str(plan.num_microbatches)),
        ("schedule", f"{plan.schedule}, {repeats} stages" if plan.schedule else "no pipeline"),
        ("precision", f"mixed, {plan.mixed_precision}" if plan.mixed_precision else "as the model"),
        ("optimizer", plan.optimizer),
        ("memory", f"{size(max(plan.memory.peak_bytes, default=0))} of {size(plan.memory.budget_bytes)} a device"),
        ("inputs", ", ".join(f"{name} {text}" for name, text in plan.fingerprint.inputs.items())),
        ("graph", f"{plan.graph.nodes} operations, {plan.graph.folded_nodes} after folding repeats"),
        ("prices", f"cost profile {plan.profile.name}"),
    )
    return Headline(
        model=plan.model, cluster=str(Cluster.from_dict(plan.cluster)),
        figures=(
            ("step time", seconds(plan.objective_s), "of one step over the global batch"),
            ("lower bound", seconds(plan.lower_bound_s), "no plan that the options allow is faster"),
            ("gap", "none" if plan.proven_optimal else percent(plan.gap), sure),
            ("mesh", mesh, f"on {devices}"),
        ),
        standing=plan.compared(), facts=facts, sha256=plan.sha256,
    )  # fmt: skip
