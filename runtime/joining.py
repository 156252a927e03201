"""A second program on the tensors of the first, which keeps each where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from autopar.ir.program import Program
from autopar.runtime.assemble import owners_of
from autopar.runtime.calls import slots_of
from autopar.runtime.devices import Here
from autopar.runtime.parameters import store
from autopar.runtime.runnable import Held, Parts, connect


def join(program: Program, constants: Mapping[str, Tensor], held: Held, here: Here) -> Parts:
    """The program on what is held. ``constants``: its own, whole, and perhaps others'."""
    described = {p.fqn: p for p in program.parameters}
    own = {name: store(described[name], constants.__getitem__, here) for name in constants if name in described}

    def parameter(fqn: str) -> Tensor:
        owner = held.top.find(fqn)
        if owner is None:  # of a block of the first program: whole from here to the end of the forward
            owner = held.holders[held.owners[fqn][0]].find(fqn)
            assert owner is not None
            if isinstance(owner, FSDPModule):
                owner.unshard()
        return owner.read(fqn)

    return connect(program, here, replace(held, buffers={**held.buffers, **own}), parameter)


def forward_only(program: Program, first: Program) -> str:
    """Why the program has no backward on what is held for ``first``; empty if it has.

    Each call must gather what one call of the first program gathers, and reduce gradients as it does.
    """
    owners, theirs = owners_of(program), owners_of(first)
    groups: dict[str, str] = {}
    back: dict[str, str] = {}
    used = _used(program)
    for name in used:
        ours, their = owners.get(name, ("", ""))[0], theirs.get(name, ("", ""))[0]
        if their and (not ours or groups.setdefault(ours, their) != their or back.setdefault(their, ours) != ours):
            return f"{name} is gathered with other parameters than in the plan's own mode"
    axes = {p.fqn: (p.runtime_axes, p.step_axes) for p in first.parameters}
    for parameter in program.parameters:
        ways = parameter.runtime_axes, parameter.step_axes
        if parameter.fqn in used and parameter.trainable and ways != axes[parameter.fqn]:
            return f"the gradient of {parameter.fqn} would be reduced in another way than in the plan's own mode"
    return ""


def _used(program: Program) -> dict[str, None]:
    """Parameters that the program computes with, in order."""
    found: list[str] = []
    for node in program.graph.nodes:
        if node.target == "param":
            found.append(str(node.attr("fqn")))
        elif node.target == "call":
            found += [name for slots in slots_of(node) for name in slots]
    buffers = {p.fqn for p in program.parameters if p.buffer}
    return {name: None for name in found if name not in buffers}
