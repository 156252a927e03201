"""The two programs of one plan: the one it was made for, and that of the model's other mode.

The second is made when it is first asked for, on every rank alike, and runs on the parameters, holders and
buffers of the first: the plan keeps each tensor where it is. Where the two would reduce the gradient of a
parameter in different ways, or gather it with others, the second only computes forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from autopar.ir.errors import IRError, UsageError
from autopar.ir.pipeline import Pipeline
from autopar.ir.program import Program
from autopar.runtime.agreement import agree
from autopar.runtime.devices import Here
from autopar.runtime.holders import Holder
from autopar.runtime.inputs import draws
from autopar.runtime.joining import forward_only, join
from autopar.runtime.runnable import Parts
from autopar.runtime.stages import Staged, Stages

# Rebuilds the model's output from the values of ``graph.outputs``.
Restore: TypeAlias = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Made:
    """A program of the plan. ``constants``: its own, whole; ``text``: what all ranks must have alike.

    ``pipeline``: the program cut into the stages of the plan, where the plan has any.
    """

    program: Program
    constants: Mapping[str, Tensor]
    restore: Restore | None
    text: str
    pipeline: Pipeline | None = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """A program put together here. ``forward_only``: why it has no backward, empty if it has.

    ``staged``: with pipeline stages those of this rank; ``parts`` is then the first of them.
    """

    program: Program
    parts: Parts
    restore: Restore | None
    forward_only: str = ""
    staged: Staged | None = None

    @property
    def every(self) -> tuple[Parts, ...]:
        """The parts of all stages of this rank."""
        return (self.parts,) if self.staged is None else tuple(self.staged.parts.values())


class Modes:
    """Programs by mode. ``make`` gives that of the other mode and is no collective; None if there is no model."""

    def __init__(
        self, made_for: bool, first: Running, here: Here, make: Callable[[bool], Made] | None, *,
        stages: Stages | None = None,
    ) -> None:  # fmt: skip
        self._made_for, self._here, self._make, self._stages = made_for, here, make, stages
        self._running = {made_for: first}
        self._made: Made | None = None

    def prepare(self, training: bool) -> None:
        """Make what ``running`` needs, on this rank. Raises UsageError if the mode is not to be had, and what
        tracing and lowering raise."""
        if training in self._running or self._made is not None:
            return
        if self._make is not None:
            self._made = self._make(training)
        elif draws(self._running[self._made_for].program):
            mode, now = ("training", "eval()") if self._made_for else ("evaluation", "train()")
            raise UsageError(
                f"the program was made in {mode} mode, draws random numbers (dropout) in it, and knows no other; undo "
                f"{now}, or run the original model on full_state_dict()"
            )

    def running(self, training: bool) -> Running:
        """The program of a mode. Requires: ``prepare`` succeeded on every rank. The first time a collective."""
        if training not in self._running:
            self._running[training] = self._put_together()
            self._made = None
        return self._running[training]

    def _put_together(self) -> Running:
        first, made = self._running[self._made_for], self._made
        if made is None:
            return first
        agree(made.text, "the program of the other mode", self._here.device)
        if made.program == first.program and not made.constants:
            return Running(program=first.program, parts=first.parts, restore=made.restore, staged=first.staged)
        self._here.divide(made.program)
        if self._stages is None:
            parts = join(made.program, made.constants, first.parts, self._here)
            only = forward_only(made.program, first.program)
            return Running(program=made.program, parts=parts, restore=made.restore, forward_only=only)
        if made.pipeline is None:
            raise IRError("the program of the other mode has no stages")
        staged, only = self._stages.join(made.pipeline, made.constants)
        parts = next(iter(staged.parts.values()))
        return Running(program=made.program, parts=parts, restore=made.restore, forward_only=only, staged=staged)


def release(top: Holder) -> None:
    """Give back what FSDP2 gathered for a forward that has no backward; it would be stale after the next update."""
    for module in top.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def grad_free(running: Running) -> torch.no_grad | torch.enable_grad:
    """Gradients off where the program has none."""
    return torch.no_grad() if running.forward_only or not torch.is_grad_enabled() else torch.enable_grad()
