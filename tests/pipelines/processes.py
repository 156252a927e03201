"""What a process of the pipeline tests does: training on its stages, compared with one device on rank 0."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autopar
from autopar.runtime.module import ParallelModule
from autopar.runtime.parity import compare
from tests import models
from tests.families import FAMILIES, Family
from tests.families.measure import EPS, LEARNING_RATE, PROFILE
from tests.on_mesh import OnMesh

STEPS, ACCUMULATED, MAX_NORM = 3, 2, 0.5
torch.set_num_threads(1)

# Deep enough that two stages a rank are cut between layers, which then stay folded, sharded and recomputed one by one.
DEEP = 5


def deep(
    name: str, build: Callable[..., nn.Module], tolerance: float, layers: int = DEEP, **changes: Any
) -> Family:
    batch = models.inputs(build.__name__)
    return Family(name=name, build=lambda: build(layers, **changes), batch=lambda: batch, tolerance=tolerance)


MODELS: dict[str, Family] = {
    **FAMILIES,
    "deep gpt2": deep("deep gpt2", models.gpt2, 1e-10),
    "deep llama": deep("deep llama", models.llama, 1e-6),
    "dropout": deep("dropout", models.gpt2, 1e-10, resid_pdrop=0.2),
    "shallow dropout": deep("shallow dropout", models.gpt2, 1e-10, 2, embd_pdrop=0.1, resid_pdrop=0.1, attn_pdrop=0.1),
}


@dataclass(frozen=True, kw_only=True)
class Case(OnMesh):
    family: str

    def __str__(self) -> str:
        return "-".join(self.words(self.family))


def batch_of(family: Family, index: int) -> dict[str, Any]:
    """Other samples in every place of the batch for each index; they differ in their number of labels."""
    return {
        name: value.roll(index, 0) if isinstance(value, Tensor) else value for name, value in family.batch().items()
    }


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Large eps: noise in gradients that are zero in exact arithmetic is not blown up."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPS)


def parallel(case: Case, model: nn.Module) -> ParallelModule:
    options = {"num_microbatches": 4, **case.options}
    return autopar.parallelize(
        model, MODELS[case.family].batch(), mesh=case.mesh, profile=PROFILE, loss_fn=MODELS[case.family].loss_fn,
        **options,
    )  # fmt: skip


def train(case: Case) -> dict[str, Any]:
    """Losses, gradients after two accumulated steps, norm, and parameters after three AdamW steps.

    Raises VerificationError on rank 0 where one differs from one device's; returns how the work was split.
    """
    family = MODELS[case.family]
    torch.manual_seed(0)
    alone = family.build()
    model = parallel(case, copy.deepcopy(alone))
    ours, theirs = adamw(model), adamw(alone)
    first = dist.get_rank() == 0
    for step in range(STEPS):
        ours.zero_grad()
        theirs.zero_grad()
        for part in range(ACCUMULATED):
            batch = batch_of(family, ACCUMULATED * step + part)
            loss = model.train_step(**model.shard_inputs(batch))
            if first:
                expected = loss_of(family, alone, batch)
                expected.backward()
                _same(family, {"loss": loss}, {"loss": expected.detach()}, f"{case}: loss of step {step}")
        gradients = model.full_gradients()
        norm = model.clip_grad_norm_(MAX_NORM)
        if first:
            wanted = {n: p.grad.clone() for n, p in alone.named_parameters() if p.grad is not None}
            _same(family, gradients, wanted, f"{case}: gradients of step {step}")
            total = nn.utils.clip_grad_norm_(alone.parameters(), MAX_NORM)
            _same(family, {"norm": norm}, {"norm": total}, f"{case}: norm of step {step}")
            theirs.step()
        ours.step()
    state = model.full_state_dict()
    if first:
        trained = {n: t for n, t in alone.state_dict().items() if n in state}
        assert set(state) == set(alone.state_dict())
        _same(family, state, trained, f"{case}: parameters")
    return {
        "stages": [stage.mark for stage in model.plan.stages], "schedule": model.plan.schedule,
        "microbatches": model.plan.num_microbatches,
        "names": [name for name, _ in model.named_parameters()], "zero": dict(model.plan.zero),
        "recompute": dict(model.plan.recompute),
    }  # fmt: skip


def drawn(case: Case) -> dict[str, Any]:
    """Losses of two steps and the gradients of both, for a model that draws random numbers."""
    torch.manual_seed(0)
    family = MODELS[case.family]
    model = parallel(case, family.build())
    losses = [model.train_step(**model.shard_inputs(batch_of(family, step))) for step in range(2)]
    return {"losses": losses, "gradients": model.full_gradients(), "recompute": set(model.plan.recompute.values())}


def loss_of(family: Family, model: nn.Module, batch: dict[str, Any]) -> Tensor:
    if family.loss_fn is None:
        return model(**batch)["loss"]  # type: ignore[no-any-return]
    given = {name: value for name, value in batch.items() if name != "target"}
    return family.loss_fn(model(**given), batch["target"])


def _same(family: Family, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    compare({n: t.double() for n, t in found.items()}, {n: t.double() for n, t in wanted.items()},
            tol=family.tolerance, what=what)  # fmt: skip
