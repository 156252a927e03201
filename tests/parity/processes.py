"""What a process of the parity tests does through the public API, and the single-device run it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.module import ParallelModule
from tests.models import SEQ, bert, gpt2, inputs, llama
from tests.parity.split import split_share

NETWORKS = Path(__file__).parents[1] / "networks"
STEPS, ACCUMULATED, MAX_NORM = 3, 2, 0.5
LAST = STEPS * ACCUMULATED  # the batch after training


class Perceptron(nn.Module):
    """Two layers without a loss of their own; the first can be frozen."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 8)
        self.up.weight.requires_grad_(not frozen)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))  # type: ignore[no-any-return]


def encoder() -> nn.Module:
    """torch's own transformer, batch first."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, dtype=torch.float64)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _frozen_embedding(model: nn.Module) -> nn.Module:
    model.get_parameter("bert.embeddings.word_embeddings.weight").requires_grad_(False)  # tied to the head
    model.get_parameter("bert.encoder.layer.0.output.dense.weight").requires_grad_(False)
    return model


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "gpt2 as it is": lambda: gpt2(exact=False),
    "llama": lambda: llama(hidden_size=64, num_attention_heads=16, num_key_value_heads=4),
    "bert": bert,
    "bert frozen": lambda: _frozen_embedding(bert()),
    "perceptron": Perceptron,
    "perceptron frozen": lambda: Perceptron(frozen=True),
    "encoder": encoder,
}
LOSSES: dict[str, Callable[..., Tensor]] = {
    "perceptron": F.cross_entropy,
    "perceptron frozen": F.cross_entropy,
    "encoder": F.mse_loss,
}
# 1e-10 in float64. transformers' loss of GPT-2 and LLaMA casts logits to float32, LLaMA's norms and rotary
# tables their operands; only there 1e-6. ``gpt2`` is given the same loss without the cast.
TOLERANCES = {"gpt2 as it is": 1e-6, "llama": 1e-6}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of ``parallelize``. ``mesh`` None is searched."""

    model: str
    mesh: Mapping[str, int] | None
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    network: str = "fair"

    def __str__(self) -> str:
        mesh = "searched" if self.mesh is None else ",".join(f"{a}={n}" for a, n in self.mesh.items())
        words = [self.model.replace(" ", "-"), mesh, *(f"{key}={value}" for key, value in self.options.items())]
        words += [self.dtype] if self.dtype != "float64" else []
        return "-".join(words)

    @property
    def tolerance(self) -> float:
        return 1e-4 if self.dtype == "float32" else TOLERANCES.get(self.model, 1e-10)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return BUILDERS[self.model]().to(getattr(torch, self.dtype))

    def batch(self, index: int) -> dict[str, Tensor] | tuple[Tensor, ...]:
        """Another batch for every ``index``. Samples differ in their number of labels, some have none."""
        generator = torch.Generator().manual_seed(100 + index)
        dtype = getattr(torch, self.dtype)
        if self.model.startswith("perceptron"):
            x = torch.randn(8, 16, generator=generator, dtype=dtype)
            target = torch.randint(0, 8, (8,), generator=generator)
            target[:3] = -100
            return x, target
        if self.model == "encoder":
            x, target = torch.randn(2, 8, SEQ, 32, generator=generator, dtype=dtype)
            return x, target
        made = inputs(self.model.split()[0], empty=index % 3)
        shuffled = torch.randperm(made["input_ids"].numel(), generator=generator)
        made["input_ids"] = made["input_ids"].flatten()[shuffled].view_as(made["input_ids"])
        return made


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Large eps: noise in gradients that are zero in exact arithmetic is not blown up."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def loss_of(case: Case, model: nn.Module, batch: Any) -> Tensor:
    if case.model in LOSSES:
        return LOSSES[case.model](model(batch[0]), batch[1])
    return model(**batch).loss  # type: ignore[no-any-return]


def expected(case: Case) -> dict[str, Any]:
    """Losses, gradients and norm after two accumulated backwards, parameters after the last step, on one device."""
    model = case.build()
    optimizer = adamw(model)
    found: dict[str, Any] = {"losses": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(ACCUMULATED):
            loss = loss_of(case, model, case.batch(ACCUMULATED * step + part))
            loss.backward()
            found["losses"].append(loss.detach())
        if step == 0:
            found["gradients"] = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        found.setdefault("norm", norm.detach())
        optimizer.step()
    found["state"] = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    optimizer.zero_grad()
    batch: Any = case.batch(LAST)
    out = model(batch[0]) if case.model in LOSSES else model(**batch)
    loss = loss_of(case, model, batch)
    loss.backward()
    found["forward"] = {
        "class": "tuple" if case.model in LOSSES else type(out).__name__,
        "output": (out if isinstance(out, Tensor) else out.logits).detach(), "loss": loss.detach(),
        "gradients": {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
    }  # fmt: skip
    return found


def parallel(case: Case, model: nn.Module | None = None) -> ParallelModule:
    return autopar.parallelize(
        case.build() if model is None else model, case.batch(0), mesh=case.mesh,
        profile=str(NETWORKS / f"{case.network}.toml"), loss_fn=LOSSES.get(case.model), **case.options,
    )  # fmt: skip


def step(model: ParallelModule, batch: Any) -> Tensor:
    """``train_step`` as the user calls it: keywords, or with ``loss_fn`` positions and a target."""
    parts = model.shard_inputs(batch)
    if isinstance(parts, dict):
        return model.train_step(**parts)
    *given, target = parts
    return model.train_step(*given, target=target)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert isinstance(parameter.grad, DTensor)
            found[name] = parameter.grad.full_tensor().clone()
    return found


def trained(case: Case, model: ParallelModule, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Losses of all steps, gradients and norm of the first, parameters after the last."""
    found: dict[str, Any] = {"losses": []}
    for index in range(STEPS):
        optimizer.zero_grad()
        found["losses"] += [step(model, case.batch(ACCUMULATED * index + part)) for part in range(ACCUMULATED)]
        if index == 0:
            found["gradients"] = gradients_of(model)
        norm = model.clip_grad_norm_(MAX_NORM)
        found.setdefault("norm", norm)
        optimizer.step()
    found["state"] = model.full_state_dict()
    return found


def labels_in(parts: Any) -> Tensor:
    """The labels, or the target, of a rank's part of a batch."""
    return parts["labels"] if isinstance(parts, dict) else parts[1]  # type: ignore[no-any-return]


def train(case: Case) -> dict[str, Any]:
    """The same as ``expected`` on this process's part, and how the work was split."""
    model = parallel(case)
    program = model._program
    optimizer = adamw(model)
    found: dict[str, Any] = {
        "mesh": dict(model.plan.mesh), "sha256": model.plan.sha256,
        "axes": program.mesh.names, "split": {a: split_share(program, a) for a, n in program.mesh.axes if n > 1},
        "kept": {n: (p.to_local().numel(), p.numel()) for n, p in model.named_parameters() if isinstance(p, DTensor)},
        "zero": dict(model.plan.zero), "recompute": dict(model.plan.recompute),
        "hsdp": dict(model.plan.hsdp), "planned parameter bytes": model.plan.memory.parts["parameters"],
        "microbatches": model.plan.num_microbatches, "place": (model.data_parallel_rank, model.data_parallel_size),
    }  # fmt: skip
    found |= trained(case, model, optimizer)
    found["forward"] = _forward(case, model, optimizer)
    found["labels"] = int((labels_in(model.shard_inputs(case.batch(0))) != -100).sum())
    return found


def _forward(case: Case, model: ParallelModule, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Plain forward and backward after training."""
    optimizer.zero_grad()
    parts: Any = model.shard_inputs(case.batch(LAST))
    out = model(parts[0], target=parts[1]) if case.model in LOSSES else model(**parts)
    loss, output = out if case.model in LOSSES else (out.loss, out.logits)
    assert isinstance(output, DTensor)
    loss.backward()
    return {
        "class": type(out).__name__, "output": output.full_tensor().detach(), "loss": loss.detach(),
        "gradients": gradients_of(model),
    }  # fmt: skip


def meta_state(case: Case) -> dict[str, Tensor]:
    """Whole weights of a model that was built on meta, as its own initialiser fills them."""
    with torch.device("meta"):
        model = case.build()
    return parallel(case, model).full_state_dict()
