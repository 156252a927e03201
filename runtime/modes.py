"""The two programs of one plan: the one it was made for, and that of the model's other mode.

The second is made when it is first asked for, on every rank alike, and runs on the parameters, holders and
buffers of the first: the plan keeps each tensor where it is. Where the two would reduce the gradient of a
parameter in different ways, or gather it with others, the second only computes forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from autopar.ir.errors import UsageError
from autopar.ir.program import Program
from autopar.runtime.agreement import agree
from autopar.runtime.assemble import owners_of
from autopar.runtime.calls import slots_of
from autopar.runtime.devices import Here
from autopar.runtime.holders import Holder
from autopar.runtime.inputs import draws
from autopar.runtime.parameters import store
from autopar.runtime.runnable import Parts, connect

# Rebuilds the model's output from the values of ``graph.outputs``.
Restore: TypeAlias = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Made:
    """A program of the plan. ``constants``: its own, whole; ``text``: what all ranks must have alike."""

    program: Program
    constants: Mapping[str, Tensor]
    restore: Restore | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Running:
    """A program put together here. ``forward_only``: why it has no backward, empty if it has."""

    program: Program
    parts: Parts
    restore: Restore | None
    forward_only: str = ""


class Modes:
    """Programs by mode. ``make`` gives that of the other mode and is no collective; None if there is no model."""

    def __init__(
        self, made_for: bool, first: Running, here: Here, make: Callable[[bool], Made] | None, *,
        in_stages: bool = False,
    ) -> None:  # fmt: skip
        self._made_for, self._here, self._make, self._in_stages = made_for, here, make, in_stages
        self._running = {made_for: first}
        self._made: Made | None = None

    def prepare(self, training: bool) -> None:
        """Make what ``running`` needs, on this rank. Raises UsageError if the mode is not to be had, and what
        tracing and lowering raise."""
        if training in self._running or self._made is not None:
            return
        if self._make is not None:
            made = self._make(training)
            if self._in_stages and (made.constants or made.program != self._running[self._made_for].program):
                mode = "training" if training else "evaluation"
                raise UsageError(
                    f"the model computes something else in {mode} mode, and a plan with pipeline stages has the "
                    "program of one mode only; run the original model on full_state_dict(), or a plan without pp"
                )
            self._made = made
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
            return Running(program=first.program, parts=first.parts, restore=made.restore)
        parts, forward_only = join(made, first, self._here)
        return Running(program=made.program, parts=parts, restore=made.restore, forward_only=forward_only)


def join(made: Made, first: Running, here: Here) -> tuple[Parts, str]:
    """The program on the tensors of ``first``, and why it has no backward, if it has none."""
    program, held = made.program, first.parts
    described = {p.fqn: p for p in program.parameters}
    own = {name: store(described[name], made.constants.__getitem__, here) for name in made.constants}

    def parameter(fqn: str) -> Tensor:
        owner = held.top.find(fqn)
        if owner is None:  # of a block of the first program: whole from here to the end of the forward
            owner = held.holders[held.owners[fqn][0]].find(fqn)
            assert owner is not None
            if isinstance(owner, FSDPModule):
                owner.unshard()
        return owner.read(fqn)

    parts = connect(program, here, replace(held, buffers={**held.buffers, **own}), parameter)
    return parts, _forward_only(program, first)


def release(top: Holder) -> None:
    """Give back what FSDP2 gathered for a forward that has no backward; it would be stale after the next update."""
    for module in top.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _forward_only(program: Program, first: Running) -> str:
    """Each call must gather what one call of the first program gathers, and reduce gradients as it does."""
    owners, theirs = owners_of(program), first.parts.owners
    groups: dict[str, str] = {}
    back: dict[str, str] = {}
    for name in _used(program):
        ours, their = owners.get(name, ("", ""))[0], theirs.get(name, ("", ""))[0]
        if their and (not ours or groups.setdefault(ours, their) != their or back.setdefault(their, ours) != ours):
            return f"{name} is gathered with other parameters than in the plan's own mode"
    axes = {p.fqn: p.runtime_axes for p in first.program.parameters}
    used = set(_used(program))
    for parameter in program.parameters:
        if parameter.fqn in used and parameter.trainable and parameter.runtime_axes != axes[parameter.fqn]:
            return f"the gradient of {parameter.fqn} would be reduced in another way than in the plan's own mode"
    return ""


def _used(program: Program) -> list[str]:
    """Parameters that the program computes with."""
    found: list[str] = []
    for node in program.graph.nodes:
        if node.target == "param":
            found.append(str(node.attr("fqn")))
        elif node.target == "call":
            found += [name for slots in slots_of(node) for name in slots]
    buffers = {p.fqn for p in program.parameters if p.buffer}
    return [name for name in dict.fromkeys(found) if name not in buffers]


def grad_free(running: Running) -> torch.no_grad | torch.enable_grad:
    """Gradients off where the program has none."""
    return torch.no_grad() if running.forward_only or not torch.is_grad_enabled() else torch.enable_grad()
