"""Models for comparing folded and unfolded searches, and the search of one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import ready
from autopar.finding import find_plan
from autopar.ir.plan import Plan

NETWORKS = Path(__file__).parents[1] / "networks"
# In another order of the alphabet, so that nothing may be sorted by name.
RENAMED = {
    "embedding": "zeta", "query": "yak", "key": "xylem", "value": "wort", "out": "vole", "up": "urn", "down": "tarn",
}  # fmt: skip
BATCH, SEQ, WIDTH, HEADS, VOCAB = 8, 16, 32, 4, 64


class Listed(nn.Module):
    """A transformer in one module: its layers are a loop over lists of parameters.

    ``odd`` makes layer 2 of them unlike the others; ``reordered`` computes what is independent the other way
    round; ``renamed`` gives every parameter another name.
    """

    def __init__(self, layers: int, *, odd: str = "", reordered: bool = False, renamed: bool = False) -> None:
        super().__init__()
        self.odd, self.reordered, self.renamed = odd, reordered, renamed
        hidden = [4 * WIDTH + (WIDTH if odd == "hidden size" and i == 2 else 0) for i in range(layers)]

        def weights(*shapes: tuple[int, int]) -> nn.ParameterList:
            return nn.ParameterList([torch.randn(shape) * 0.1 for shape in shapes])

        self.layers = layers
        self.register_parameter(self.named("embedding"), nn.Parameter(torch.randn(VOCAB, WIDTH)))
        for name in ("query", "key", "value", "out"):
            self.add_module(self.named(name), weights(*[(WIDTH, WIDTH)] * layers))
        self.add_module(self.named("up"), weights(*[(n, WIDTH) for n in hidden]))
        self.add_module(self.named("down"), weights(*[(WIDTH, n) for n in hidden]))
        if odd == "frozen weight":
            self.the("up")[2].requires_grad_(False)

    def named(self, name: str) -> str:
        return RENAMED[name] if self.renamed else name

    def the(self, name: str) -> Any:
        return getattr(self, self.named(name))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = F.embedding(input_ids, self.the("embedding"))
        for i in range(self.layers):
            x = x + self.attention(F.layer_norm(x, (WIDTH,)), i)
            h = F.gelu(F.linear(F.layer_norm(x, (WIDTH,)), self.the("up")[i]))
            if self.odd in ("dropout p", "dropout"):
                h = F.dropout(h, 0.2 if self.odd == "dropout p" and i == 2 else 0.1, self.training)
            x = x + F.linear(h, self.the("down")[i])
        return F.cross_entropy(F.linear(x, self.the("embedding")).view(-1, VOCAB), labels.view(-1))

    def attention(self, x: Tensor, i: int) -> Tensor:
        if self.reordered:
            v, k, q = (self.heads(x, self.the(name)[i]) for name in ("value", "key", "query"))
        else:
            q, k, v = (self.heads(x, self.the(name)[i]) for name in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.the("out")[i])

    def heads(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight).view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def tokens() -> dict[str, Tensor]:
    ids = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids}


def searched(
    model: nn.Module,
    *,
    mesh: Mapping[str, int] | None,
    how: Mapping[str, bool] | None = None,
    network: str = "free",
    **options: Any,
) -> Plan:
    """The plan on a network where splitting pays, for as many devices as ``mesh`` has, or for two."""
    world = 2 if mesh is None else math.prod(mesh.values())
    arguments = check(
        cluster=f"1x{world}xCPU", profile=str(NETWORKS / f"{network}.toml"), mesh=mesh, num_microbatches=1, **options
    )
    return find_plan(ready(model, tokens(), arguments, **(how or {})), arguments)[0]
