"""Collectives that a process really does in a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from autopar.cost_model import Cluster, load_profile
from autopar.cost_model.simulator import simulate
from autopar.finding import pipeline_of
from autopar.runtime.module import ParallelModule
from tests.parity.processes import Case, parallel, step

# Collectives on tensors of the model, by the operation that carries them; agreement between ranks uses others.
KINDS = {
    "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce",
    "alltoall_base_": "all_to_all",
}  # fmt: skip


class Traffic(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "c10d" and name in KINDS:
            self.counts[KINDS[name]] += 1
        return func(*args, **(kwargs or {}))


def counted(case: Case) -> dict[str, Any]:
    """Collectives of the second step, what the plan lists, and how many groups of parameters FSDP2 has."""
    model = parallel(case)
    step(model, case.batch(0))
    with Traffic() as traffic:
        step(model, case.batch(1))
    holders = sum(1 for module in model._parts[0].top.modules() if type(module).__name__.startswith("FSDP"))
    return {
        "counts": dict(traffic.counts), "holders": holders, "simulated": simulated(model),
        "planned": [(c.kind, c.count, c.where, c.phase) for c in model.plan.collectives],
    }  # fmt: skip


def simulated(model: ParallelModule) -> dict[str, int]:
    """Collectives of a simulated step."""
    plan, program = model.plan, model._program
    timeline = simulate(
        program, Cluster.from_dict(plan.cluster), load_profile(None), optimizer=plan.optimizer,
        pipeline=pipeline_of(plan, program), detail="operations",
    )  # fmt: skip
    here = [event for event in timeline.events if event.track.place == 0 and event.track.stream != "compute"]
    return dict(Counter(kind for event in here if (kind := event.name.split()[0]) in KINDS.values()))
