"""``verify``: the plan's program on local processes against one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from autopar.ir.errors import UsageError
from autopar.ir.plan import Plan
from autopar.processes import conversation
from autopar.verifying import rank
from autopar.verifying.sizes import smaller_mesh
from autopar.verifying.verified import Verified

PROCESSES = 4


@dataclass(frozen=True)
class Given:
    """A model and inputs that the caller has already."""

    model: nn.Module
    inputs: Any

    def __call__(self) -> tuple[nn.Module, Any]:
        return self.model, self.inputs


@dataclass(frozen=True)
class Made:
    """A model that every process makes for itself."""

    factory: Callable[[], Any]
    inputs: Any

    def __call__(self) -> tuple[nn.Module, Any]:
        return self.factory(), self.inputs


def verify(
    model_or_factory: nn.Module | Callable[[], nn.Module], example_inputs: Any, plan: Plan, *,
    loss_fn: Callable[[Any, Tensor], Tensor] | None = None, nproc: int = PROCESSES,
) -> Verified:  # fmt: skip
    """Train one step of the plan on at most ``nproc`` local processes, in float64, and compare with one device.

    Each axis of the mesh shrinks to at most 2, then the rightmost to 1 until the processes suffice; operations are
    placed as the plan places them. ``example_inputs`` are real tensors of any global batch that the mesh divides.
    A factory is called in every process; it, or the model, must be picklable, and a script that calls this needs
    ``if __name__ == "__main__":``. Raises VerificationError naming the first tensor that differs (the loss, then
    gradients in the model's order); MismatchError if the plan is for another model.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise UsageError("verify starts processes of its own: call it outside of a process group")
    made = Given if isinstance(model_or_factory, nn.Module) else Made
    return verified(made(model_or_factory, example_inputs), plan, nproc=nproc, loss_fn=loss_fn)  # type: ignore[arg-type]


def verified(
    source: rank.Source, plan: Plan, *, nproc: int, loss_fn: Callable[[Any, Tensor], Tensor] | None = None,
    drop: int | None = None,
) -> Verified:  # fmt: skip
    """``verify`` with anything that makes a model and inputs. ``drop``: leave out that collective, to see it fail."""
    mesh = smaller_mesh(plan, nproc)
    words = list(conversation(rank.run, mesh.world_size, source, plan.to_bytes(), mesh, loss_fn, drop))
    found = words[-1]
    assert isinstance(found, Verified)
    return found
