"""A model planned and simulated, and all that it leaves behind compared with one device."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autopar.arguments import check
from autopar.compiling import Readied, ready
from autopar.finding import find_plan
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.passes.trace.structure import Structure
from autopar.runtime.parity import compare
from autopar.runtime.simulate import Simulated, simulate

NETWORKS = Path(__file__).parents[1] / "networks"
FREE = str(NETWORKS / "free.toml")


@dataclass(frozen=True, kw_only=True)
class Planned:
    readied: Readied
    plan: Plan
    program: Program


def planned(model: nn.Module, inputs: Any, mesh: str, *, network: str = "free", **options: Any) -> Planned:
    """``free``: communication costs nothing, so that even tiny models are split wherever they may be."""
    sizes = {axis: int(size) for axis, size in (part.split("=") for part in mesh.split(","))}
    world = math.prod(sizes.values())
    profile = str(NETWORKS / f"{network}.toml")
    arguments = check(cluster=f"1x{world}xCPU", mesh=sizes, profile=profile, name="state", **options)
    readied = ready(model, inputs, arguments)
    plan, program = find_plan(readied, arguments)
    return Planned(readied=readied, plan=plan, program=program)


def simulated(found: Planned, model: nn.Module, inputs: Any) -> Simulated:
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    traced = found.readied.traced
    state = {**dict(model.named_parameters()), **dict(model.named_buffers()), **traced.constants}
    return simulate(found.program, traced.calling.flatten(args, kwargs), {k: v.detach() for k, v in state.items()})


def difference(found: Simulated, loss: int | None, model: nn.Module, inputs: Any, tolerance: float = 1e-10) -> float:
    """Largest error of loss, outputs, gradients and buffers beside one device's; VerificationError above ``tolerance``.

    Asserts that no other buffer changes and no other gradient is other than zero.
    """
    one = copy.deepcopy(model)
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    outputs, _ = Structure.of(one(*args, **kwargs))
    assert loss is not None and found.loss is not None
    outputs[loss].backward()
    gradients = {name: p.grad for name, p in one.named_parameters() if p.grad is not None}
    assert not [name for name, got in found.gradients.items() if name not in gradients and got.any()]
    before, after = dict(model.named_buffers()), dict(one.named_buffers())
    assert {n for n in after if not torch.equal(before[n], after[n])} <= set(found.buffers)
    assert all(found.buffers[name].dtype == after[name].dtype for name in found.buffers)
    return max(
        compare(_numbered([found.loss]), _numbered([outputs[loss]]), tol=tolerance, what="loss"),
        compare(_numbered(found.outputs), _numbered(outputs), tol=tolerance, what="outputs"),
        compare(found.gradients, gradients, tol=tolerance, what="gradients"),
        compare(found.buffers, {name: after[name] for name in found.buffers}, tol=tolerance, what="buffers"),
    )


def _numbered(tensors: Any) -> dict[str, Tensor]:
    return {str(at): tensor.detach().double() for at, tensor in enumerate(tensors)}
