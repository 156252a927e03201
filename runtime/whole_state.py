"""What goes in and out of a ``ParallelModule`` as whole tensors: its state, an optimizer's, what a run goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from autopar.ir.errors import UnsupportedError, UsageError
from autopar.runtime.dtensors import gathered
from autopar.runtime.modes import release
from autopar.runtime.parameters import Names
from autopar.runtime.restart import (
    full_optimizer_state,
    joined,
    joined_groups,
    load_full_optimizer_state,
    load_tensors,
)
from autopar.runtime.runnable import Parts
from autopar.runtime.scaling import LossScale
from autopar.runtime.stages import Stages
from autopar.runtime.unanimous import Unanimous

T = TypeVar("T")


class WholeState(nn.Module):
    """The methods of ``ParallelModule`` that save and restore."""

    _parts: list[Parts]
    rng_seed: int
    rng_step: int
    _evaluations: int
    loss_scale: LossScale
    _stages: Stages | None
    _names: Names
    _gathered: bool
    _unanimous: Unanimous

    def full_state_dict(self) -> dict[str, Tensor]:
        """Whole tensors under the original names, on every rank. A collective of all ranks."""
        found = {name: gathered(tensor).detach().clone() for name, tensor in self.state_dict().items()}
        if self._stages is None:
            return found
        made = self._stages.everywhere(found)
        made.update({alias: made[name] for alias, name in self._names.aliases.items() if name in made})
        return {name: made[name] for name in dict.fromkeys((*self._names.order, *made)) if name in made}

    def full_gradients(self) -> dict[str, Tensor]:
        """Whole gradients by original name, those that there are, on every rank. A collective of all ranks."""
        found = {n: gathered(p.grad).clone() for n, p in self.named_parameters() if p.grad is not None}
        return found if self._stages is None else self._stages.everywhere(found)

    def load_full_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> None:
        """Whole tensors by original name, such as ``full_state_dict`` of any layout, or the original model's own.

        Every rank gives the same. Raises UsageError, before anything changes, where they do not fit the model.
        """
        self._release()
        load_tensors(self.state_dict(keep_vars=True), state, self._elsewhere, strict=strict)

    def full_optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state, whole, by names of parameters, on every rank. A collective of all ranks."""
        found = full_optimizer_state({p: name for name, p in self.named_parameters()}, optimizer)
        return found if self._stages is None else joined(self._stages.of_all(found), self._names.order)

    def load_full_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Continue with what ``full_optimizer_state_dict`` gave at any layout. Every rank gives the same."""
        names = {p: name for name, p in self.named_parameters()}
        load_full_optimizer_state(names, optimizer, state, self._elsewhere)

    @property
    def _elsewhere(self) -> tuple[str, ...]:
        """Names that other ranks of a pipeline may hold."""
        return () if self._stages is None else self._names.order

    def _places(self, value: T) -> list[T]:
        """What each place of the pipeline gives. A collective."""
        return [value] if self._stages is None else self._stages.of_all(value)

    def _groups_everywhere(self, groups: Sequence[Mapping[str, Any]] | None) -> Sequence[Mapping[str, Any]] | None:
        """An optimizer's groups with the names that all stages hold, from those of this rank's. A collective."""
        if self._stages is None:
            return groups
        found = [there for there in self._places(groups) if there is not None]
        return joined_groups(found, self._names.order) if found else None

    def _release(self) -> None:
        for parts in self._parts:
            release(parts.top)
        self._gathered = False

    def training_state_dict(self) -> dict[str, Any]:
        """What a run goes on with besides parameters and optimizer: plain numbers, equal on every rank."""
        return {
            "rng_seed": self.rng_seed, "rng_step": self.rng_step, "evaluations": self._evaluations,
            "loss_scale": self.loss_scale.state_dict(),
        }  # fmt: skip

    def load_training_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``training_state_dict`` was taken, whatever the layout."""
        self.loss_scale.load_state_dict(state["loss_scale"])
        self.rng_seed, self.rng_step = int(state["rng_seed"]), int(state["rng_step"])
        self._evaluations = int(state.get("evaluations", 0))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's, for tensors in this plan's layout, which are copied. Raises UsageError for ``assign``."""
        if assign:
            raise UsageError(
                "load_state_dict(assign=True) would replace tensors that the program goes on reading; leave assign "
                "out, or use load_full_state_dict for whole tensors"
            )
        self._release()
        return super().load_state_dict(state_dict, strict=strict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """``copy.deepcopy`` and ``pickle``: UnsupportedError, since a program and its processes cannot be copied."""
        raise UnsupportedError(
            "a ParallelModule cannot be copied or pickled: parallelize a copy of the original model; to keep averages "
            "of parameters hold clones by name, {name: p.detach().clone() for name, p in model.named_parameters()}; "
            "to save it use full_state_dict()"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WholeState:
        """``to``, ``half``, ``cuda``: nothing to do where they change nothing, else UsageError: the plan decides."""
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            probe = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            made = fn(probe)
            if made.dtype != probe.dtype or made.device != probe.device:
                raise UsageError(
                    f"{name} is {probe.dtype} on {probe.device} by the plan and cannot become {made.dtype} on "
                    f"{made.device}; convert the model before parallelize, or use mixed_precision"
                )
        return self
