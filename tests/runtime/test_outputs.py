"""What a model returns of several microbatches, on gloo processes: its loss unrounded, other sums over the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from tests.harness import run_processes

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
