"""What a model returns of several microbatches, on gloo processes: its loss unrounded, other sums over the batch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from tests.harness import refusal, run_processes

RANKS, MICROBATCHES, ROWS = 2, 2, 8


class Penalised(nn.Module):
    """A loss, another sum over the batch that parameters have a part in, and one value for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 12)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.inner(x))
        logits = self.outer(hidden)
        loss = nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "activity": hidden.pow(2).sum(), "logits": logits}


def model(dtype: torch.dtype) -> Penalised:
    torch.manual_seed(0)
    return Penalised().to(dtype)


def batch(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 16, dtype=torch.float64, generator=generator).to(dtype)
    return {"x": x, "labels": torch.randint(12, (ROWS,), generator=generator)}


def run(dtype: torch.dtype, precision: str | None) -> dict[str, Any]:
    made = autopar.parallelize(
        model(dtype), batch(dtype), cluster=f"1x{RANKS}xCPU", mesh={"dp": RANKS}, num_microbatches=MICROBATCHES, zero=0,
        mixed_precision=precision,
    )  # fmt: skip
    part = made.shard_inputs(batch(dtype))
    out = made(**part)
    loss = made.train_step(**part)
    gradients: dict[str, Any] = {name: each.grad for name, each in made.named_parameters()}
    return {
        "out": {name: whole(each).detach() for name, each in out.items()}, "loss": loss,
        "gradients": {name: whole(each) for name, each in gradients.items()},
    }  # fmt: skip


def whole(value: Any) -> Tensor:
    found: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return found


def test_sums_beside_the_loss_are_those_of_the_whole_batch() -> None:
    wanted = model(torch.float64)(**batch(torch.float64))
    for found in run_processes(RANKS, run, torch.float64, None):
        for name, value in wanted.items():
            torch.testing.assert_close(found["out"][name], value.detach(), rtol=1e-12, atol=0)


def test_a_loss_in_bfloat16_is_added_up_before_it_is_rounded() -> None:
    """Summands that are rounded before would be off by several units of its last place."""
    single = model(torch.float32)
    wanted = single(**batch(torch.float32))["loss"]
    wanted.backward()
    for found in run_processes(RANKS, run, torch.float32, "bf16"):
        assert found["loss"].dtype == found["out"]["loss"].dtype == torch.float32
        torch.testing.assert_close(found["loss"], wanted.detach(), rtol=4e-3, atol=0)
        assert found["loss"] != found["loss"].bfloat16()
        for name, parameter in single.named_parameters():
            assert parameter.grad is not None
            difference = (found["gradients"][name] - parameter.grad).norm() / parameter.grad.norm()
            assert difference < 2e-2, name


class Terms(Penalised):
    """A loss of several terms, each of which the model rounds, beside the terms themselves."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.inner(x))
        logits = self.outer(hidden)
        loss = nn.functional.cross_entropy(logits, labels)
        other = nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
        spread = logits.logsumexp(-1).float().pow(2).mean()
        return {"loss": (loss + other) / 2 - -(0.1 * spread), "ce": loss, "logged": loss.detach()}


def terms(mesh: dict[str, int]) -> dict[str, Any]:
    torch.manual_seed(0)
    given = batch(torch.float32)
    made = autopar.parallelize(
        Terms(), given, cluster=f"1x{RANKS}xCPU", mesh=mesh, num_microbatches=MICROBATCHES, mixed_precision="bf16"
    )
    part = made.shard_inputs(given)
    found: dict[str, Any] = {"loss": made.train_step(**part)}
    found["gradients"] = {name: whole(each.grad) for name, each in made.named_parameters() if each.grad is not None}
    if "pp" not in mesh:
        found["out"] = {name: whole(each).detach() for name, each in made(**part).items()}
    return found


class Derived(Penalised):
    """Outputs that are not linear in sums over the batch; and one that is. A tensor that its forward makes."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        made = super().forward(x * torch.linspace(0.5, 1, 16, dtype=x.dtype).to(x.device), labels)
        error = made["logits"].pow(2).mean()
        logged = made["loss"].detach()
        return {"loss": made["loss"], "logged": logged, "perplexity": made["loss"].exp(), "error": error.sqrt()}


def derived(mesh: dict[str, int], microbatches: int) -> dict[str, Any]:
    torch.manual_seed(0)
    original = Derived().double()
    given = batch(torch.float64)
    made = autopar.parallelize(original, given, mesh=mesh, num_microbatches=microbatches)
    part = made.shard_inputs(given)
    found: dict[str, Any] = {
        "train": made.train_step(**part), "eval": made.eval_step(**part), "copied": refusal(copy.deepcopy, made),
        "state": list(made.full_state_dict()), "forward": refusal(made, **part), "step": made.rng_step,
    }  # fmt: skip
    made.load_full_state_dict(original.state_dict())
    if found["forward"] == "accepted":
        found["out"] = {name: whole(each).detach() for name, each in made(**part).items()}
    return found


def test_outputs_that_a_microbatch_cannot_tell_are_refused_and_nothing_else() -> None:
    """They would be those of a part of the batch, added up. Steps do not need them; one microbatch has them all."""
    torch.manual_seed(0)
    single = Derived().double()
    wanted = {name: each.detach() for name, each in single(**batch(torch.float64)).items()}
    for mesh, microbatches in (({"dp": 2}, 1), ({"dp": 2}, 2), ({"tp": 2}, 4), ({"pp": 2}, 2)):
        for found in run_processes(RANKS, derived, mesh, microbatches):
            for name in ("train", "eval"):
                torch.testing.assert_close(found[name], wanted["loss"], rtol=1e-12, atol=0)
            assert found["state"] == list(single.state_dict())
            assert "cannot be copied" in found["copied"]
            if microbatches == 1:
                torch.testing.assert_close(found["out"], wanted, rtol=1e-12, atol=0)
            elif "pp" not in mesh:
                assert "output 2 of the model depends on aten.exp.default" in found["forward"]
                assert found["step"] == 1


def test_a_loss_of_several_terms_in_bfloat16_is_not_rounded_either() -> None:
    torch.manual_seed(0)
    single = Terms()
    wanted = single(**batch(torch.float32))
    wanted["loss"].backward()
    for mesh in ({"dp": 2}, {"tp": 2}, {"pp": 2}):
        trained: set[str] = set()
        for found in run_processes(RANKS, terms, mesh):
            out = {"loss": found["loss"], **found.get("out", {})}
            for name, value in out.items():
                assert value.dtype == torch.float32 and value != value.bfloat16(), name
                torch.testing.assert_close(value, wanted[name].detach(), rtol=4e-3, atol=0)
            for name, gradient in found["gradients"].items():
                exact = single.get_parameter(name).grad
                assert exact is not None and (gradient - exact).norm() < 2e-2 * exact.norm(), name
            trained.update(found["gradients"])
        assert trained == dict(single.named_parameters()).keys()
