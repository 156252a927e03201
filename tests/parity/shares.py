"""What a process does with a plan whose ranks take unequal shares of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import autopar
from autopar.cost_model import Cluster, Network, NodeGroup
from autopar.ir.plan import Plan
from autopar.runtime.module import ParallelModule
from tests.harness import refusal
from tests.models import bert
from tests.parity.processes import LAST, LOSSES, NETWORKS, Case, adamw, gradients_of, labels_in, trained
from tests.parity.split import split_share


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A case on processors of which the first ``fast`` are three times as fast as the ``slow`` behind them."""

    model: str
    fast: int
    slow: int
    microbatches: int
    zero: int = 0
    recompute: str = "none"

    def __str__(self) -> str:
        return f"{self.model}-{self.fast}+{self.slow}-{self.microbatches}-zero{self.zero}-{self.recompute}"

    @property
    def world(self) -> int:
        return self.fast + self.slow

    @property
    def case(self) -> Case:
        return Case(model=self.model, mesh={"dp": self.world})


def cluster(fast: int, slow: int) -> Cluster:
    nodes = [(fast, "CPU"), (slow, "Slow")]
    return Cluster(
        nodes=tuple(NodeGroup(count=1, gpus=gpus, device=device) for gpus, device in nodes if gpus),
        network=Network(bandwidth_bytes_s=1e12, latency_s=5e-7),
    )


def planned(mixed: Mixed, model: torch.nn.Module | None = None, **options: Any) -> Plan:
    case = mixed.case
    how = {"zero": mixed.zero, "recompute": mixed.recompute, "num_microbatches": mixed.microbatches, **options}
    return autopar.plan(
        case.build() if model is None else model, case.batch(0), cluster=cluster(mixed.fast, mixed.slow),
        profile=str(NETWORKS / "mixed.toml"), mesh=case.mesh, loss_fn=LOSSES.get(mixed.model), **how,
    )  # fmt: skip


def parallel(mixed: Mixed, plan: bytes) -> ParallelModule:
    return autopar.parallelize(
        mixed.case.build(), mixed.case.batch(0), plan=Plan.from_bytes(plan), loss_fn=LOSSES.get(mixed.model)
    )


def train(mixed: Mixed, plan: bytes) -> dict[str, Any]:
    """As ``processes.train``, without a plain forward, and the loss in evaluation after training."""
    model, case = parallel(mixed, plan), mixed.case
    found: dict[str, Any] = {
        "shares": model.plan.shares, "zero": dict(model.plan.zero), "rows": model.local_batch_size,
        "split": split_share(model._program, "dp"), "sha256": model.plan.sha256,
    }  # fmt: skip
    found |= trained(case, model, adamw(model))
    parts: Any = model.shard_inputs(case.batch(LAST))
    labels = labels_in(parts)
    found["labels"] = int((labels != -100).sum()) if labels.dtype == torch.int64 else labels.numel()
    if isinstance(parts, dict):
        found["evaluated"] = model.eval_step(**parts)
    else:
        found["evaluated"] = model.eval_step(parts[0], target=parts[1])
    return found


def few_labels(case: Case) -> dict[str, Tensor]:
    """A batch whose last two samples have no label, nor the second two."""
    batch: Any = case.batch(0)
    batch["labels"][6:] = batch["labels"][2:4] = -100
    return batch  # type: ignore[no-any-return]


def unlabelled(mixed: Mixed, plan: bytes) -> tuple[Tensor, dict[str, Tensor], int]:
    """Loss and gradients where a microbatch of the first rank and all of the second have no label."""
    model = parallel(mixed, plan)
    parts = model.shard_inputs(few_labels(mixed.case))
    loss = model.train_step(**parts)
    return loss, gradients_of(model), int((parts["labels"] != -100).sum())


def with_dropout() -> torch.nn.Module:
    torch.manual_seed(0)
    return bert(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)


def dropped(mixed: Mixed, plan: bytes) -> tuple[Any, Tensor, dict[str, Tensor]]:
    """Shares, loss and gradients of a second step of a BERT with dropout, the seed always the same."""
    model = with_dropout()
    torch.manual_seed(1)
    made = autopar.parallelize(model, mixed.case.batch(0), plan=Plan.from_bytes(plan))
    made.train_step(**made.shard_inputs(mixed.case.batch(0)))
    made.zero_grad()
    loss = made.train_step(**made.shard_inputs(mixed.case.batch(1)))
    return made.plan.shares, loss, gradients_of(made)


def refusals(mixed: Mixed, plan: bytes) -> dict[str, str]:
    """What is said to calls that unequal shares do not allow; every rank makes the same."""
    model = parallel(mixed, plan)
    batch: Any = model.shard_inputs(mixed.case.batch(0))
    short = {name: tensor[:1] for name, tensor in batch.items()}
    return {"forward": refusal(model, **batch), "rows": refusal(model.train_step, **short)}
