"""Which experts each token goes to, and with what weight."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autopar.errors import UsageError

GATES = ("softmax", "sigmoid")
# Of a sum of gates that is divided by: none of theirs is as small, but all of them may be 0 in float32.
_TINY = 1e-20


class Routed(NamedTuple):
    """The choices of every token; experts are counted inside their prototype.

    ``logits`` and ``gates`` are [batch, length, prototypes, experts of a prototype], ``chosen`` (int64) and ``weight``
    [batch, length, prototypes, top_k], the best choice first. All but ``chosen`` in float32 or wider. ``gates`` may be
    missing where nobody asked for them.
    """

    logits: Tensor
    gates: Tensor | None
    chosen: Tensor
    weight: Tensor


class Router(nn.Module):
    """``top_k`` experts of each of ``prototypes`` equal groups of experts, by a linear map of the token.

    Gates are the softmax over a prototype's logits (Shazeer et al. 2017) or their sigmoids (DeepSeek-V3, 2024). The
    weight of a choice is its gate; with ``normalize`` it is divided by the sum over all choices of the token (GShard,
    2021). With ``jitter`` > 0, in training, the router sees tokens times uniform numbers of [1 - jitter, 1 + jitter]
    (Switch, 2022). It computes in float32, or wider if the tokens are.
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        *,
        top_k: int = 2,
        prototypes: int = 1,
        gate: str = "softmax",
        normalize: bool = False,
        jitter: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if gate not in GATES:
            raise UsageError(f"Router: gate is {gate!r}; it is one of {', '.join(GATES)}")
        if prototypes < 1 or num_experts % prototypes:
            raise UsageError(f"Router: {num_experts} experts make no {prototypes} equal prototypes")
        if not 1 <= top_k <= num_experts // prototypes:
            raise UsageError(
                f"Router: top_k is {top_k}, but a prototype has {num_experts // prototypes} experts to choose from"
            )
        if normalize and top_k * prototypes == 1:
            raise UsageError("Router: normalize makes the weight of a single choice 1, and the router learns nothing")
        if not 0 <= jitter < 1:
            raise UsageError(f"Router: jitter is {jitter}; it is at least 0 and below 1")
        self.hidden_size, self.num_experts, self.prototypes, self.top_k = hidden_size, num_experts, prototypes, top_k
        self.gate, self.normalize, self.jitter = gate, normalize, jitter
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As ``nn.Linear`` does: uniform within ± 1/sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, hidden: Tensor, *, with_gates: bool = True) -> Routed:
        """Of tokens [batch, length, hidden_size]; the choices need no gates if ``normalize`` takes their softmax."""
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        tokens = hidden.to(wide)
        if self.training and self.jitter:
            tokens = tokens * (1 - self.jitter + 2 * self.jitter * torch.rand_like(tokens))
        of_each = self.num_experts // self.prototypes
        logits = F.linear(tokens, self.weight.to(wide)).view(*hidden.shape[:-1], self.prototypes, of_each)
        if self.normalize and self.gate == "softmax" and self.prototypes == 1:  # the same in a third of the operations
            best, chosen = logits.topk(self.top_k, dim=-1)
            gates = logits.softmax(-1) if with_gates else None
            return Routed(logits=logits, gates=gates, chosen=chosen, weight=best.softmax(-1))
        gates = logits.softmax(-1) if self.gate == "softmax" else logits.sigmoid()
        weight, chosen = gates.topk(self.top_k, dim=-1)
        if self.normalize:
            weight = weight / (weight.sum((-2, -1), keepdim=True) + _TINY)
        return Routed(logits=logits, gates=gates, chosen=chosen, weight=weight)

    def extra_repr(self) -> str:
        return (
            f"{self.hidden_size}, {self.num_experts}, top_k={self.top_k}, prototypes={self.prototypes}, "
            f"gate={self.gate!r}, normalize={self.normalize}, jitter={self.jitter}"
        )
