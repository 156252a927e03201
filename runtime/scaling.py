"""Loss scaling for programs that compute in float16, whose gradients would underflow to zero.

``train_step`` scales the loss before its backward pass and unscales what that pass adds to ``.grad``, so clipping and
optimizers see plain float32 gradients and a training loop is the same as in any other precision. Where a
gradient is not finite on any rank, the step adds nothing on all of them: ``.grad`` is what it was before, ``None``
after ``zero_grad()``, which optimizers leave alone. Rule and defaults are those of ``torch.amp.GradScaler``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autopar.ir.errors import UsageError
from autopar.ir.program import Program
from autopar.runtime.reading import part_of

# The largest power of two in float16: a gradient of the loss above it is infinite there.
FLOAT16_LIMIT = 2.0**15


class LossScale:
    """``value`` is halved when a step overflows and doubled after ``growth_interval`` steps that did not.

    ``skipped`` counts the steps that overflowed. An inactive one changes nothing. All attributes are equal on all
    ranks and may be set, to the same on every rank.
    """

    def __init__(self, *, active: bool, device: torch.device, limit: float = math.inf) -> None:
        self.active = active
        self.value = min(2.0**16, limit)
        self._limit = limit
        self.growth_factor, self.backoff_factor, self.growth_interval = 2.0, 0.5, 2000
        self.skipped = 0
        self._since_growth = 0
        self._device = device
        self._before: dict[nn.Parameter, Tensor] = {}

    @classmethod
    def of(cls, program: Program, device: torch.device) -> LossScale:
        """Active where parameters are computed with in float16 that are stored in another type."""
        active = any(p.compute_dtype == "f16" != p.type.dtype for p in program.parameters)
        loss = None if program.loss is None else program.graph.values()[program.loss].type.dtype
        return cls(active=active, device=device, limit=FLOAT16_LIMIT if loss == "f16" else math.inf)

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set the gradients of earlier steps aside: one that overflows must not touch them."""
        self._before.clear()
        if self.active:
            for parameter in dict.fromkeys(parameters):
                if parameter.grad is not None:
                    self._before[parameter] = parameter.grad
                    parameter.grad = None

    def scaled(self, loss: Tensor) -> Tensor:
        """What the backward pass begins at."""
        return loss.float() * self.value if self.active else loss

    def finish(self, parameters: Iterable[nn.Parameter]) -> None:
        """Unscale the gradients of this step and add those set aside; drop them if one overflowed. A collective."""
        if not self.active:
            return
        held = [parameter for parameter in dict.fromkeys(parameters) if parameter.requires_grad]
        overflowed = self._unscale([part_of(p.grad) for p in held if p.grad is not None])
        for parameter in held:
            before = self._before.pop(parameter, None)
            if overflowed or parameter.grad is None:
                parameter.grad = before
            elif before is not None:
                parameter.grad = before.add_(parameter.grad)
        self._update(overflowed)

    @torch.no_grad()
    def _unscale(self, parts: list[Tensor]) -> bool:
        """Whether any rank has a gradient that is not finite."""
        bad = torch.zeros((), device=self._device)
        for part in parts:
            part.mul_(1.0 / self.value)
            bad = torch.maximum(bad, (~part.isfinite()).any().to(bad.dtype))
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        return bool(bad)

    def _update(self, overflowed: bool) -> None:
        if overflowed:
            self.value *= self.backoff_factor
            self.skipped += 1
            self._since_growth = 0
            return
        self._since_growth += 1
        if self._since_growth >= self.growth_interval:
            self.value = min(self.value * self.growth_factor, self._limit)
            self._since_growth = 0

    def state_dict(self) -> dict[str, Any]:
        """What continues the scaling elsewhere: plain numbers, equal on every rank."""
        return {
            "value": self.value, "since_growth": self._since_growth, "skipped": self.skipped,
            "growth_factor": self.growth_factor, "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = [name for name in ("value", "since_growth", "skipped") if name not in state]
        if missing:
            raise UsageError(f"the state of the loss scale has no {missing[0]!r}; it has {', '.join(map(str, state))}")
        self.value, self.skipped = float(state["value"]), int(state["skipped"])
        self._since_growth = int(state["since_growth"])
        for name in ("growth_factor", "backoff_factor", "growth_interval"):
            setattr(self, name, type(getattr(self, name))(state.get(name, getattr(self, name))))
