"""A mixture of experts in place of a transformer's feed-forward network."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autopar.errors import UsageError
from autopar.ir.errors import IRError
from autopar.ir.formulas import parse_gate
from autopar.nn import capacity, losses
from autopar.nn.router import Routed, Router
from autopar.runtime.experts import experts


class MoEOutput(NamedTuple):
    """What a layer returns.

    ``hidden`` [batch, length, hidden_size]; ``loss``, a number: the weighted auxiliary losses, to be added to the
    model's own; ``dropped``, int64 [batch]: how many choices of each sequence no expert took.
    """

    hidden: Tensor
    loss: Tensor
    dropped: Tensor


class MoE(nn.Module):
    """``hidden, loss, dropped = moe(x)``: every token of x [batch, length, hidden_size] goes to a few of many experts.

    An expert is a feed-forward network, ``down @ act(up @ x)``, or with a gated activation ``down @ (act(a @ x) · (b @
    x))`` where ``up`` is a above b (``ir/gates.py``: all that ``activation`` may say). All experts are two parameters:
    ``up`` [experts, intermediate_size, hidden_size], twice as high if gated, and ``down`` [experts, hidden_size,
    intermediate_size]. The output of a token is the sum of its experts' outputs, each times its weight.

    Routing (``Router``): ``top_k`` experts out of all, as in GShard (Lepikhin et al. 2021; 1 is Switch, Fedus et al.
    2022), or out of each of ``prototypes`` equal groups, which is k top-1 routing of M6-T (Yang et al. 2021) where
    ``top_k`` is 1: as much work and traffic as one top-k, without k rounds of choosing.

    Everything is defined *for each sequence of the batch by itself*, so that the output and the losses depend neither
    on which sequences share a device nor on how a step is cut into microbatches:

    - ``capacity_factor``: an expert takes at most ceil(factor · k · length / experts) of a sequence's choices, k a
      token (GShard, each sequence one of its groups): first choices before second ones, each in order of position.
      What is left over is dropped: that expert adds nothing, and no gradient flows. None: no expert ever drops.
    - ``balance_loss`` times E · Σ f P (Switch; by sequence as in DeepSeek-V2, 2024) plus ``z_loss`` times the mean of
      log²(Σ exp(logits)) (ST-MoE, Zoph et al. 2022), each the mean over sequences, is the ``loss`` that is returned. A
      model adds it to its own: ``return task_loss + sum(auxiliary)``. It is an ordinary value of the graph, so it
      reaches the step's loss through stages and microbatches as any other, and nothing is kept between calls.

    Raises UsageError for sizes that do not fit.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        *,
        top_k: int = 2,
        prototypes: int = 1,
        activation: str = "silu-glu",
        gate: str = "softmax",
        normalize: bool = False,
        jitter: float = 0.0,
        capacity_factor: float | None = None,
        balance_loss: float = 0.01,
        z_loss: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        columns = _columns(activation)
        if capacity_factor is not None and not capacity_factor > 0:
            raise UsageError(f"MoE: capacity_factor is {capacity_factor}; it is above 0, or None to drop nothing")
        self.hidden_size, self.intermediate_size, self.num_experts = hidden_size, intermediate_size, num_experts
        self.activation, self.capacity_factor = activation, capacity_factor
        self.balance_loss, self.z_loss = balance_loss, z_loss
        self.router = Router(
            hidden_size, num_experts, top_k=top_k, prototypes=prototypes, gate=gate, normalize=normalize,
            jitter=jitter, device=device, dtype=dtype,
        )  # fmt: skip
        rows = columns * intermediate_size
        self.up = nn.Parameter(torch.empty(num_experts, rows, hidden_size, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each expert as two ``nn.Linear`` would be: uniform within ± 1/sqrt(inputs). The router resets itself."""
        for weight in (self.up, self.down):
            bound = 1 / math.sqrt(weight.shape[-1])
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, hidden: Tensor) -> MoEOutput:
        if hidden.dim() != 3:
            raise UsageError(f"MoE: the input is {list(hidden.shape)}; it must be [batch, length, {self.hidden_size}]")
        routed = self.router(hidden, with_gates=bool(self.balance_loss))
        line = load = None
        if self.capacity_factor is not None or self.balance_loss:
            line = capacity.in_line(routed.chosen)
            load = capacity.load_of(line, self.num_experts // self.router.prototypes)
        chosen, dropped = self._limited(routed.chosen, line, load)
        tokens, choices = chosen.shape[:2].numel(), chosen.shape[2:].numel()
        index, weight = chosen.reshape(tokens, choices), routed.weight.reshape(tokens, choices)
        out = experts(
            hidden.flatten(0, 1), index, weight, self.up, self.down, gate=self.activation,
            complete=self.capacity_factor is None,
        )  # fmt: skip
        return MoEOutput(out.view(hidden.shape), self._loss(routed, load), dropped)

    def _limited(self, chosen: Tensor, line: Tensor | None, load: Tensor | None) -> tuple[Tensor, Tensor]:
        """The choices counted over all experts, ``num_experts`` for a dropped one; and drops by sequence."""
        prototypes = self.router.prototypes
        if prototypes > 1:
            first = torch.arange(0, self.num_experts, self.num_experts // prototypes, device=chosen.device)
            chosen = chosen + first.unsqueeze(-1)
        if self.capacity_factor is None or line is None or load is None:
            return chosen, chosen.new_zeros(chosen.shape[0])
        most = capacity.capacity_of(self.capacity_factor, line.shape[1] * line.shape[2], self.num_experts)
        taken = capacity.back(capacity.places(line, load) < most, self.router.top_k)
        return torch.where(taken, chosen, self.num_experts), (load - most).clamp_min(0).sum((1, 2))

    def _loss(self, routed: Routed, load: Tensor | None) -> Tensor:
        if not (self.balance_loss or self.z_loss):
            return routed.logits.new_zeros(())
        total = routed.logits.new_zeros(routed.logits.shape[0])
        if self.balance_loss and routed.gates is not None and load is not None:
            choices = routed.chosen.shape[1:].numel()
            total = total + self.balance_loss * losses.balance_loss(routed.gates, load, choices)
        if self.z_loss:
            total = total + self.z_loss * losses.z_loss(routed.logits)
        return total.mean()

    def extra_repr(self) -> str:
        return (
            f"{self.hidden_size}, {self.intermediate_size}, {self.num_experts}, activation={self.activation!r}, "
            f"capacity_factor={self.capacity_factor}, balance_loss={self.balance_loss}, z_loss={self.z_loss}"
        )


def _columns(activation: str) -> int:
    """Rows of ``up`` for each that the activation gives."""
    try:
        return parse_gate(activation).columns
    except IRError as error:
        raise UsageError(f"MoE: activation {error}") from None
