"""Models whose layers return something, on a process and on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import autopar
from tests.models import exact_loss, gpt2, inputs
from tests.parity.processes import NETWORKS, gradients_of

LAYERS = 4


def mixtral() -> nn.Module:
    """Its auxiliary loss is a product of two sums along all layers."""
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(MixtralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, num_local_experts=4, max_position_embeddings=16, router_aux_loss_coef=0.5,
        output_router_logits=True, use_cache=False, bos_token_id=None, eos_token_id=None,
    ))  # fmt: skip
    model.set_experts_implementation("eager")  # the others take float32 at most
    model.loss_function = exact_loss
    return model.double()


class Supervised(nn.Module):
    """A head on what every layer makes, all in one product; each layer's weight in the loss is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        layers = (nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)) for _ in range(LAYERS))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(32, 64)
        self.weight = nn.Parameter(torch.randn(LAYERS))

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x, states = self.embed(input_ids), []
        for layer in self.layers:
            x = x + layer(x)
            states.append(x)
        logits = self.head(torch.stack(states, dim=2)).transpose(1, 3)
        each = F.cross_entropy(logits, labels[..., None].expand(-1, -1, LAYERS).transpose(1, 2), reduction="none")
        return {"loss": (each.mean((0, 2)) * self.weight).sum(), "first": states[0], "logits": logits}


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: gpt2(LAYERS, output_hidden_states=True),
    "mixtral": mixtral,
    "supervised": lambda: Supervised().double(),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of ``parallelize``."""

    model: str
    mesh: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = [f"{key}={value}" for key, value in self.options.items() if key != "constraints"]
        told_apart = ["constraints"] if "constraints" in self.options else []
        return "-".join([self.model, *(f"{axis}={n}" for axis, n in self.mesh.items()), *options, *told_apart])

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return BUILDERS[self.model]()


def _found(out: Any, whole: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Everything that the model returns, by name."""
    found = dict[str, Tensor]()
    for name, given in out.items():
        parts = given if isinstance(given, tuple) else (given,)
        found |= {f"{name}.{at}": whole(part).detach() for at, part in enumerate(parts)}
    return found


def expected(case: Case) -> dict[str, Any]:
    """All outputs and gradients of two batches, in training and then in evaluation."""
    model, found = case.build(), dict[str, Any]()
    out = model(**inputs("gpt2"))
    out["loss"].backward()
    found["outputs"] = _found(out, lambda each: each)
    found["gradients"] = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        found["evaluated"] = _found(model.eval()(**inputs("gpt2", empty=2)), lambda each: each)
    return found


def run(case: Case) -> dict[str, Any]:
    """The same on this process, and the gradients and losses of a training step."""
    batch: Any = inputs("gpt2")
    model = autopar.parallelize(
        case.build(), batch, mesh=case.mesh, profile=str(NETWORKS / "fair.toml"), **case.options
    )
    calls = [node for node in model._program.graph.nodes if node.target == "call"]
    found: dict[str, Any] = {"calls": [int(str(node.attr("count"))) for node in calls]}
    found["loss"] = model.train_step(**model.shard_inputs(batch))
    found["stepped"] = gradients_of(model)
    if "pp" in case.mesh:
        return found
    model.zero_grad()
    out = model(**model.shard_inputs(batch))
    out["loss"].backward()
    found["outputs"], found["gradients"] = _found(out, _whole), gradients_of(model)
    model.eval()
    with torch.no_grad():
        found["evaluated"] = _found(model(**model.shard_inputs(inputs("gpt2", empty=2))), _whole)
    return found


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
