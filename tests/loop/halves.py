"""What a process of the mixed precision tests does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.module import ParallelModule
from tests.harness import refusal

HALF = str(Path(__file__).parents[1] / "networks" / "half.toml")
SMALL = 1e-6  # a loss whose gradients are below what float16 can hold


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def loss_fn(out: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(out.float(), target) * SMALL


def made() -> nn.Module:
    torch.manual_seed(0)
    return Perceptron()


def batch(index: int = 0) -> tuple[Tensor, Tensor]:
    x, target = torch.randn(2, 8, 4, 16, generator=torch.Generator().manual_seed(index)).unbind()
    return x, target[..., :8].contiguous()


def parallel(mesh: dict[str, int], precision: str, **options: Any) -> ParallelModule:
    return autopar.parallelize(
        made(), batch(), mesh=mesh, mixed_precision=precision, loss_fn=loss_fn, profile=HALF, **options
    )


def train_step(model: ParallelModule, x: Tensor, target: Tensor) -> Tensor:
    x, target = model.shard_inputs((x, target))
    return model.train_step(x, target=target)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {
        name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for name, p in model.named_parameters()
    }


def scaled(mesh: dict[str, int], precision: str, options: dict[str, Any]) -> dict[str, Any]:
    """Gradients of two accumulated steps with and without scaling; they are float32, and so is what is stored."""
    model = parallel(mesh, precision, **options)
    found: dict[str, Any] = {"active": model.loss_scale.active}
    for active in (True, False):
        model.zero_grad()
        model.loss_scale.active = active and found["active"]
        for index in range(2):
            found["loss"] = train_step(model, *batch(index))
        found[f"gradients {active}"] = gradients(model)
    found["dtypes"] = {str(t.dtype) for p in model.parameters() for t in (p, p.grad) if t is not None}
    return found


def expected() -> dict[str, Any]:
    model = made()
    for index in range(2):
        x, target = batch(index)
        loss = loss_fn(model(x), target)
        loss.backward()
    return {"loss": loss.detach(), "gradients": gradients(model)}


def overflowing(mesh: dict[str, int]) -> dict[str, Any]:
    """The batch of one rank overflows: what an optimizer does, what stays of earlier steps, how the scale moves."""
    model = parallel(mesh, "fp16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, target = model.shard_inputs(batch())
    wild = x * 60000 if dist.get_rank() == dist.get_world_size() - 1 else x
    before, scale = model.full_state_dict(), model.loss_scale
    model.train_step(wild, target=target * 1e30 if wild is not x else target)
    none = all(p.grad is None for p in model.parameters())
    norm = model.clip_grad_norm_(1.0)
    optimizer.step()
    found: dict[str, Any] = {
        "none": none, "norm": norm, "state": len(optimizer.state), "halved": scale.value, "skipped": scale.skipped,
        "same": all(torch.equal(before[name], tensor) for name, tensor in model.full_state_dict().items()),
    }  # fmt: skip
    model.train_step(x, target=target)
    good = gradients(model)
    model.train_step(wild, target=target * 1e30 if wild is not x else target)
    kept = gradients(model)
    found["kept"] = all(torch.equal(good[name], kept[name]) for name in good)  # type: ignore[arg-type]
    optimizer.step()
    found["stepped"] = len(optimizer.state)
    scale.growth_interval = 2
    for _ in range(2):
        model.train_step(x, target=target)
    found["grown"] = scale.value
    other = parallel(mesh, "fp16")
    other.load_training_state_dict(model.training_state_dict())
    found["restored"] = (other.loss_scale.value, other.rng_step == model.rng_step, other.loss_scale.skipped)
    return found


def inputs_of_half_precision(mesh: dict[str, int]) -> dict[str, Any]:
    """float32 and bfloat16 inputs are the same to a program in bfloat16; float64 is refused."""
    model = parallel(mesh, "bf16")
    x, target = model.shard_inputs(batch())
    losses = [float(model.train_step(x.to(dtype), target=target)) for dtype in (torch.float32, torch.bfloat16)]
    return {"losses": losses, "refused": refusal(model.train_step, x.double(), target=target)}
