"""Sums of gradients at the end of a step, on gloo processes: one collective, the same numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from autopar.ir.errors import UsageError
from autopar.ir.mesh import Mesh
from autopar.ir.program import Program
from autopar.ir.text import parse_graph
from autopar.runtime.module import ParallelModule
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.harness import run_processes
from tests.lowered import lowered, model_of
from tests.passes.graphs import NORM

MICROBATCHES = 2


def program() -> Program:
    """A norm over a split sequence: the gradients of both its weights are sums over tp."""
    choices = {"y": {"tp": "d1", "mb": "d0"}, "l": {"tp": "d1", "mb": "d0"}}
    model = model_of(parse_graph(NORM), {"x": (0, 1)})
    return lowered(model, Mesh((("tp", 2),)), choices, {"x": "mb:S(0)"}, microbatches=MICROBATCHES)


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(8, generator=generator, dtype=torch.float64) for name in "wb"}


def batch(step: int) -> Tensor:
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1 + step), dtype=torch.float64)


def gradients(module: ParallelModule) -> dict[str, Tensor]:
    found = {}
    for name, parameter in module.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        found[name] = parameter.grad.full_tensor().clone()
    return found


def run() -> dict[str, Any]:
    """Gradients after one and two accumulated steps and after a plain backward, and what was reduced."""
    module = ParallelModule(program(), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), weights().__getitem__)
    sizes: list[int] = []
    plain = dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.numel())
        return plain(tensor, *args, **kwargs)

    dist.all_reduce = counted
    found: dict[str, Any] = {}
    module.train_step(batch(0))
    found["sizes"] = list(sizes)
    found["one"] = gradients(module)
    held = dict(module.named_parameters())["w"].grad
    module.train_step(batch(1))
    found["two"] = gradients(module)
    found["same tensor"] = held is dict(module.named_parameters())["w"].grad
    try:
        module.train_step(batch(0)[:1])
    except UsageError as error:
        found["refused"] = type(error).__name__
    found["after a refusal"] = gradients(module)
    module.zero_grad()
    (loss,) = module(batch(0))
    loss.backward()
    found["forward"] = gradients(module)
    dist.all_reduce = plain
    return found


def test_gradients_are_added_up_once_a_step() -> None:
    """Two microbatches, two weights, one collective for them; steps accumulate, ``forward`` needs no step."""
    first, second = (simulate(program(), {"x": batch(step)}, weights()).gradients for step in (0, 1))
    both = {name: first[name] + second[name] for name in first}
    for found in run_processes(2, run):
        # the agreement on the inputs, the loss of each microbatch, the weights together
        assert found["sizes"] == [3, *[1] * MICROBATCHES, 16]
        compare(found["one"], first, tol=1e-12, what="one step")
        compare(found["two"], both, tol=1e-12, what="two steps")
        assert found["same tensor"] and found["refused"] == "UsageError"
        compare(found["after a refusal"], both, tol=1e-12, what="after a step that was refused")
        compare(found["forward"], first, tol=1e-12, what="forward and backward")
