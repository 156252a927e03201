"""The mixtures of experts that are measured: ours and others', with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.nn import MoE

HUGGING_FACE = ("grouped_mm", "batched_mm", "eager")
# batched_mm copies the matrices of every choice: above this it is left out.
LARGEST_COPY_BYTES = 2e9


@dataclass(frozen=True, kw_only=True)
class Size:
    """``batch`` sequences of ``length`` tokens, ``top_k`` of ``experts`` gated ones for each."""

    batch: int
    length: int
    width: int
    inner: int
    experts: int
    top_k: int = 2

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in asdict(self).items())


def ours(size: Size, dtype: torch.dtype, device: torch.device) -> MoE:
    """The same weights on every call."""
    torch.manual_seed(0)
    return MoE(
        size.width, size.inner, size.experts, top_k=size.top_k, normalize=True, balance_loss=0.0, dtype=dtype,
        device=device,
    )  # fmt: skip


def mixtral(made: MoE, implementation: str) -> nn.Module:
    """Mixtral's block of Hugging Face on the weights of ``made``."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=made.hidden_size, intermediate_size=made.intermediate_size, num_local_experts=made.num_experts,
        num_experts_per_tok=made.router.top_k, hidden_act="silu", router_jitter_noise=0.0,
    )  # fmt: skip
    config._experts_implementation = implementation
    with torch.device("meta"):
        block = MixtralSparseMoeBlock(config)
    block.gate.weight = nn.Parameter(made.router.weight.detach().clone())
    block.experts.gate_up_proj = nn.Parameter(made.up.detach().clone())
    block.experts.down_proj = nn.Parameter(made.down.detach().clone())
    return block.train()


class Naive(nn.Module):
    """What one writes first: every expert its own two layers, one after the other on the tokens that chose it."""

    def __init__(self, made: MoE) -> None:
        super().__init__()
        self.top_k = made.router.top_k
        self.router = nn.Parameter(made.router.weight.detach().clone())
        self.up = nn.ParameterList(each.clone() for each in made.up.detach())
        self.down = nn.ParameterList(each.clone() for each in made.down.detach())

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.flatten(0, 1)
        weight, index = F.linear(x, self.router).float().softmax(-1).topk(self.top_k)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            token, choice = torch.where(index == number)
            gate, rest = F.linear(x[token], up).chunk(2, dim=-1)
            made = F.linear(F.silu(gate) * rest, down) * weight[token, choice, None]
            out = out.index_add(0, token, made.to(out.dtype))
        return out.view(hidden.shape)


def rivals(size: Size, made: MoE) -> dict[str, nn.Module]:
    """By name: all that can run this size."""
    copied = size.tokens * size.top_k * made.up[0].numel() * made.up.element_size()
    names = [name for name in HUGGING_FACE if name != "batched_mm" or copied <= LARGEST_COPY_BYTES]
    return {**{name: mixtral(made, name) for name in names}, "naive": Naive(made)}


def step(layer: nn.Module, size: Size, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """Forward and backward of one layer from zeroed gradients, ended when it is done; a number of its output.

    Gradients of the input too, as inside of a model.
    """
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(size.batch, size.length, size.width, generator=generator).to(device, dtype).requires_grad_()
    slope = torch.randn(size.batch, size.length, size.width, generator=generator).to(device, dtype)

    def run() -> Tensor:
        layer.zero_grad(set_to_none=True)
        hidden.grad = None
        out = layer(hidden)
        out = out if isinstance(out, Tensor) else out.hidden
        out.backward(slope)
        found = out.detach().float().square().mean().cpu()  # waits for the forward
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return found

    return run
