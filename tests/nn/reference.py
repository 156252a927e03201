"""The layer once more, as loops over sequences, choices and tokens: slow, and nothing of it shared with the layer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from autopar.nn import MoE

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def expert(moe: MoE, number: int, token: Tensor) -> Tensor:
    """What one expert makes of one token."""
    name = moe.activation.removesuffix("-glu")
    first = moe.up[number] @ token
    if name == moe.activation:
        return moe.down[number] @ ACTIVATIONS[name](first)
    gate, rest = first[: moe.intermediate_size], first[moe.intermediate_size :]
    return moe.down[number] @ (ACTIVATIONS[name](gate) * rest)


def gates_of(moe: MoE, logits: Tensor) -> Tensor:
    """Of one token's logits in one prototype."""
    if moe.router.gate == "sigmoid":
        return 1 / (1 + (-logits).exp())
    return logits.exp() / logits.exp().sum()


def run(moe: MoE, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, list[int]]:
    """``hidden, loss, dropped`` of x [batch, length, width]; ``noise``: uniform numbers of [0, 1), in x's shape."""
    router, size = moe.router, moe.num_experts // moe.router.prototypes
    outputs, losses, dropped = [], [], []
    jitter = router.jitter if noise is not None else 0.0
    for sample in range(len(x)):
        tokens = list(x[sample])
        draws = torch.zeros_like(x[sample]) if noise is None else noise[sample]
        seen = [token * (1 - jitter + 2 * jitter * draw) for token, draw in zip(tokens, draws, strict=True)]
        logits = [router.weight @ token for token in seen]
        gates = [torch.cat([gates_of(moe, part) for part in each.split(size)]) for each in logits]
        choices = []
        for each in gates:
            best = [
                sorted(range(z * size, (z + 1) * size), key=each.tolist().__getitem__, reverse=True)[: router.top_k]
                for z in range(router.prototypes)
            ]
            choices.append(list(zip(*best, strict=True)))  # [rank][prototype]
        taken, wanted, lost = [0] * moe.num_experts, [0] * moe.num_experts, 0
        rows = [torch.zeros_like(token) for token in tokens]
        total = len(tokens) * router.top_k * router.prototypes
        most = math.inf if moe.capacity_factor is None else math.ceil(moe.capacity_factor * total / moe.num_experts)
        for rank in range(router.top_k):
            for at, token in enumerate(tokens):
                scale = sum(gates[at][e] for row in choices[at] for e in row) if router.normalize else 1
                for e in choices[at][rank]:
                    wanted[e] += 1
                    if taken[e] == most:
                        lost += 1
                        continue
                    taken[e] += 1
                    rows[at] = rows[at] + gates[at][e] / scale * expert(moe, e, token)
        outputs.append(torch.stack(rows))
        dropped.append(lost)
        mean = torch.stack([each / each.sum() for each in gates]).mean(0)
        balance = moe.num_experts * torch.stack([w / total * p for w, p in zip(wanted, mean, strict=True)]).sum()
        z = torch.stack([part.exp().sum().log() ** 2 for each in logits for part in each.split(size)]).sum()
        losses.append(moe.balance_loss * balance + moe.z_loss * z / (len(tokens) * router.prototypes))
    return torch.stack(outputs), torch.stack(losses).mean(), dropped
