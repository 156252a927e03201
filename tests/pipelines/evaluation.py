"""What a process of the evaluation tests does: a pipeline trains and evaluates, beside one device and its like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import autopar
from autopar.runtime.module import ParallelModule
from autopar.runtime.parity import compare
from tests import models
from tests.families import FAMILIES, Family
from tests.families.measure import PROFILE
from tests.harness import refusal
from tests.modes.networks import Depth, Scaled, rows
from tests.on_mesh import OnMesh
from tests.pipelines.processes import adamw, batch_of
from tests.state.processes import loss_of

RATE, STEPS = 0.1, 3


def dropping(family: Family) -> Family:
    """The family with dropout wherever it knows one."""

    def build() -> nn.Module:
        model = family.build()
        for module in model.modules():
            for name, value in list(vars(module).items()):
                rate = isinstance(value, float) and (name == "p" if isinstance(module, nn.Dropout) else "drop" in name)
                if rate:
                    setattr(module, name, RATE)
        return model

    return Family(name=family.name, build=build, batch=family.batch, tolerance=family.tolerance)


def own(name: str, build: Any, batch: Any) -> Family:
    return Family(name=name, build=build, batch=lambda: batch, tolerance=1e-10)


MODELS: dict[str, Family] = {
    "plain gpt2": own("plain", models.gpt2, models.inputs("gpt2")),
    **{name: dropping(FAMILIES[name]) for name in ("llama", "t5", "vit")},
    "gpt2": dropping(own("gpt2", models.gpt2, models.inputs("gpt2"))),
    "bert": dropping(own("bert", models.bert, models.inputs("bert"))),
    "deep gpt2": dropping(own("deep gpt2", lambda: models.gpt2(5), models.inputs("gpt2"))),
    "scaled": own("scaled", Scaled, rows(16)),
    "depth": own("depth", Depth, rows(8)),
}
DRAWS_NOTHING = ("scaled",)


@dataclass(frozen=True, kw_only=True)
class Case(OnMesh):
    """``planned_in``: the mode of the model when it is planned."""

    family: str
    planned_in: str = "train"

    def __str__(self) -> str:
        return "-".join([*self.words(self.family), *(["planned-in-eval"] if self.planned_in == "eval" else [])])


def parallel(case: Case, planned_in: str) -> ParallelModule:
    torch.manual_seed(0)
    family = MODELS[case.family]
    options = {"num_microbatches": 4, **case.options}
    return autopar.parallelize(
        family.build().train(planned_in == "train"), family.batch(), mesh=dict(case.mesh), profile=PROFILE, **options
    )


def trained(case: Case, model: ParallelModule, *, evaluate: bool) -> list[Tensor]:
    """Losses of training steps of two batches each, with or without evaluation between and within them."""
    family, optimizer = MODELS[case.family], adamw(model)
    model.train()
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            losses.append(model.train_step(**model.shard_inputs(batch_of(family, 2 * step + part))))
            for index in range(2 if evaluate else 0):
                model.eval_step(**model.shard_inputs(batch_of(family, index)))
        optimizer.step()
        if evaluate:
            model.eval()
            model.eval_step(**model.shard_inputs(batch_of(family, step)))
            model.train()
    return losses


def run(case: Case) -> dict[str, Any]:
    """Raises VerificationError where evaluation is not that of one device, or training not what it was without."""
    family = MODELS[case.family]
    model, other = parallel(case, case.planned_in), parallel(case, "train")
    if case.planned_in == "eval":
        model.eval_step(**model.shard_inputs(family.batch()))
    losses, wanted = trained(case, model, evaluate=True), trained(case, other, evaluate=False)
    _same(losses, wanted, f"{case}: losses of training")
    state = model.full_state_dict()
    compare(state, other.full_state_dict(), tol=1e-9, what=f"{case}: parameters")
    if case.family in DRAWS_NOTHING:
        _as_one_device(case, losses, state)

    single = family.build()
    single.load_state_dict(state)
    single.eval()
    model.train()
    for index in range(3):
        batch = batch_of(family, index)
        found = model.eval_step(**model.shard_inputs(batch))
        with torch.no_grad():
            expected = loss_of(single(**batch))
        compare({"loss": found}, {"loss": expected.to(found.dtype)}, tol=family.tolerance, what=f"{case}: evaluation")
        model.eval()
    now = model._modes.running(False)
    model.zero_grad()
    told = ""
    if now.forward_only:
        told = refusal(model.train_step, **model.shard_inputs(family.batch()))
    else:
        _backward_in_evaluation(case, model, single)
    model.train()
    model.zero_grad()
    other.zero_grad()
    model.rng_step = other.rng_step
    batch = batch_of(family, 1)
    _same([model.train_step(**model.shard_inputs(batch))], [other.train_step(**other.shard_inputs(batch))], "after")
    compare(model.full_gradients(), other.full_gradients(), tol=1e-8, what=f"{case}: gradients after evaluation")
    return {
        "stages": [stage.mark for stage in model.plan.stages], "told": told,
        "shared": now.parts is model._modes.running(True).parts, "zero": set(model.plan.zero.values()),
        "blocks": len(now.program.graph.blocks), "planned blocks": len(model._program.graph.blocks),
    }  # fmt: skip


def _as_one_device(case: Case, losses: list[Tensor], state: dict[str, Tensor]) -> None:
    family = MODELS[case.family]
    torch.manual_seed(0)
    single = family.build()
    optimizer = adamw(single)
    wanted = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            loss = loss_of(single(**batch_of(family, 2 * step + part)))
            loss.backward()
            wanted.append(loss.detach())
        optimizer.step()
    _same(losses, wanted, f"{case}: losses of one device")
    compare(state, single.state_dict(), tol=1e-9, what=f"{case}: parameters of one device")


def _backward_in_evaluation(case: Case, model: ParallelModule, single: nn.Module) -> None:
    family = MODELS[case.family]
    batch = batch_of(family, 2)
    found = model.train_step(**model.shard_inputs(batch))
    expected = loss_of(single(**batch))
    expected.backward()
    wanted = {name: p.grad for name, p in single.named_parameters() if p.grad is not None}
    gradients = {name: grad for name, grad in model.full_gradients().items() if name in wanted or bool(grad.any())}
    compare({"loss": found}, {"loss": expected.detach().to(found.dtype)}, tol=family.tolerance, what=f"{case}: loss")
    compare(gradients, wanted, tol=family.tolerance, what=f"{case}: gradients in evaluation mode")


def _same(found: list[Tensor], wanted: list[Tensor], what: str) -> None:
    compare(dict(enumerated(found)), dict(enumerated(wanted)), tol=1e-10, what=what)


def enumerated(values: list[Tensor]) -> list[tuple[str, Tensor]]:
    return [(str(at), value.double()) for at, value in enumerate(values)]


def from_evaluation_of_depth() -> str:
    """What is told where training needs a parameter that evaluation does not: the first stage alone holds it."""
    model = parallel(Case(family="depth", mesh={"pp": 2}, planned_in="eval"), "eval")
    batch = model.shard_inputs(MODELS["depth"].batch())
    before = model.eval_step(**batch)
    model.train()
    told = refusal(model.train_step, **batch)
    assert model.eval_step(**batch) == before
    return told
