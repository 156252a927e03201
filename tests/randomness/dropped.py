"""Tiny models with dropout, planned as a user plans them and run in one process."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autopar.arguments import Arguments
from autopar.arguments import check as check_arguments
from autopar.compiling import Readied, ready
from autopar.finding import find_plan
from autopar.ir.program import Program
from autopar.runtime.simulate import Simulated, simulate
from tests.families import FAMILIES
from tests.models import SEQ, VOCAB, bert, gpt2, inputs, llama

FAIR = Path(__file__).parents[1] / "networks" / "fair.toml"
SEED, STEP = 3, 5


def _gpt2(**changes: Any) -> nn.Module:
    return gpt2(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, **changes)


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=2, d_model=32, num_heads=4, d_kv=8, d_ff=48, vocab_size=VOCAB, pad_token_id=0, dropout_rate=0.1,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, use_cache=False,
    )  # fmt: skip
    config.decoder_start_token_id = 0
    torch.manual_seed(0)
    return T5ForConditionalGeneration(config).double()


def _switch() -> nn.Module:
    model = FAMILIES["switch"].build()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.25
    return model


class Masks(nn.Module):
    """Returns what it drops: masks of every kind of draw, among them those of two equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16, dtype=torch.float64))
        self.layers = nn.ModuleList(nn.Linear(16, 16, dtype=torch.float64) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = x * self.weight
        ones = torch.ones_like(h)
        elements = nn.functional.dropout(ones, 0.25)
        channels = nn.functional.dropout2d(ones.unflatten(2, (4, 4)), 0.5).flatten(2)
        noise, numbers = torch.rand_like(h), torch.randn(h.shape[1:], dtype=h.dtype)
        kept = torch.bernoulli(torch.sigmoid(h))
        h = h * elements * channels + noise + numbers + kept
        for layer in self.layers:
            h = h + nn.functional.dropout(layer(h), 0.5)
        return h, elements, channels, noise, numbers, kept


class Weighted(nn.Module):
    """Every sample has a random weight, and the loss is divided by their sum: needed before the first microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.rand(x.shape[0], dtype=x.dtype)
        return ((x * self.weight).square().mean(dim=(1, 2)) * weights).sum() / weights.sum()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": _gpt2,
    "gpt2 eager": lambda: _gpt2(attn_implementation="eager"),
    "bert": lambda: bert(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "llama": lambda: llama(attention_dropout=0.1),
    "t5": _t5,
    "switch": _switch,
    "masks": Masks,
    "weighted": Weighted,
}
# Where the model itself computes in float32 (the norms of LLaMA and T5, LLaMA's loss), that is how exact it is.
TOLERANCES = {"llama": 1e-6, "t5": 1e-6}


def batch(name: str) -> dict[str, Tensor]:
    if name in ("masks", "weighted"):
        return {"x": torch.linspace(-1, 1, 8 * SEQ * 16, dtype=torch.float64).view(8, SEQ, 16)}
    return FAMILIES[name].batch() if name in FAMILIES else inputs(name.split()[0], empty=1)


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    mesh: str = ""
    microbatches: int = 1
    zero: int | None = None
    recompute: str | None = None
    rng: str = "exact"
    shared: bool = True

    def __str__(self) -> str:
        words = [self.model.replace(" ", "-"), self.mesh or "alone"]
        words += [f"{self.microbatches}mb"] if self.microbatches > 1 else []
        words += [f"zero{self.zero}"] if self.zero is not None else []
        words += [f"recompute-{self.recompute}"] if self.recompute else []
        words += [self.rng] if self.rng != "exact" else []
        return "-".join(words + ([] if self.shared else ["apart"]))

    @property
    def tolerance(self) -> float:
        return TOLERANCES.get(self.model, 1e-10)

    @property
    def sizes(self) -> dict[str, int]:
        return {axis: int(size) for axis, size in (part.split("=") for part in self.mesh.split(",") if part)}


@functools.cache
def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().train()


@functools.cache
def program(case: Case) -> tuple[Program, Readied]:
    world = math.prod(case.sizes.values())
    arguments: Arguments = check_arguments(
        cluster=f"1x{world}xCPU", mesh=case.sizes or None, profile=str(FAIR), num_microbatches=case.microbatches,
        zero=case.zero, recompute=case.recompute, rng=case.rng, loss_fn=LOSSES.get(case.model),
    )  # fmt: skip
    readied = ready(built(case.model), example(case.model), arguments, shared=case.shared)
    return find_plan(readied, arguments)[1], readied


def _first(out: tuple[Tensor, ...], target: Tensor) -> Tensor:
    return (out[0].square().mean(dim=(1, 2)) - target).mean()


def _itself(out: Tensor, target: Tensor) -> Tensor:
    return out + 0 * target.sum()


LOSSES: dict[str, Callable[..., Tensor]] = {"masks": _first, "weighted": _itself}


def example(name: str) -> Any:
    made = batch(name)
    return (made["x"], torch.zeros(8, dtype=torch.float64)) if name in LOSSES else made


def run(case: Case, *, seed: int = SEED, step: int = STEP) -> Simulated:
    made, readied = program(case)
    model = built(case.model)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers()), **readied.traced.constants}
    given = {**batch(case.model), "target": torch.zeros(8, dtype=torch.float64)}
    return simulate(made, given, {k: t.detach() for k, t in state.items()}, seed=seed, step=step)


@functools.cache
def alone(name: str) -> Simulated:
    """What one device computes."""
    return run(Case(model=name))


torch.set_num_threads(1)
