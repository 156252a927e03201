"""Custom functions of autograd train as they do alone, or are refused by name; what tells them apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from autopar.arguments import check
from autopar.compiling import ready
from autopar.finding import find_plan
from autopar.ir.errors import UnsupportedError
from autopar.passes.trace.slopes import NotSlopedError, check_slopes
from autopar.runtime.parity import compare
from autopar.runtime.simulate import simulate
from tests.parity.processes import NETWORKS
from tests.trace.custom_functions import REFUSED, TRACED, Called

MESHES = [{"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}]


def built(call: Callable[[Tensor, Tensor], Tensor]) -> tuple[Called, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Called(call).double(), {"x": torch.randn(4, 8, dtype=torch.float64)}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", TRACED)
def test_a_custom_function_trains_as_on_one_device(name: str, mesh: dict[str, int]) -> None:
    """With the gradient that it says, which need not be the derivative."""
    model, inputs = built(TRACED[name])
    given = check(
        cluster=f"1x{math.prod(mesh.values())}xCPU", mesh=mesh, profile=str(NETWORKS / "fair.toml"), num_microbatches=1
    )
    plan, program = find_plan(ready(model, inputs, given), given)
    assert plan.islands == ()
    found = simulate(program, inputs, {key: p.detach() for key, p in model.named_parameters()})
    loss = model(**inputs)
    loss.backward()
    assert found.loss is not None
    expected = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    compare({"loss": found.loss}, {"loss": loss.detach()}, tol=1e-10, what="loss")
    compare({key: found.gradients[key] for key in expected}, expected, tol=1e-10, what="gradients")


@pytest.mark.parametrize("name", REFUSED)
def test_a_custom_function_that_does_more_is_refused_by_name(name: str) -> None:
    call, why = REFUSED[name]
    model, inputs = built(call)
    given = check(cluster="1x2xCPU", profile=str(NETWORKS / "fair.toml"))
    with pytest.raises(UnsupportedError, match=rf"custom_functions\.{name}, a torch.autograd.Function: .*{why}"):
        ready(model, inputs, given)


def told(backward: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Why a backward of ``x`` and the gradient is not of the kind; empty if it is."""

    def run(args: Sequence[Any]) -> tuple[Tensor, Callable[[Tensor], Any]]:
        return args[0].clone(), lambda gradient: backward(args[0], gradient)

    try:
        check_slopes(run, [torch.empty(5, 4)])
    except NotSlopedError as error:
        return str(error)
    return ""


def zeroed(x: Tensor, grad: Tensor) -> Tensor:
    made = grad.clone()
    made[x < 0] = 0
    return made


def added(x: Tensor, grad: Tensor) -> Tensor:
    made = grad.clone()
    made[x < 0] += 1
    return made


SLOPED: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, g: g * x, lambda x, g: x.exp() * g, lambda x, g: g / x, lambda x, g: -g, lambda x, g: g * x + g * 2 - g,
    lambda x, g: torch.zeros_like(g), zeroed, lambda x, g: torch.where(x > 0, g * x, 0.0), lambda x, g: g.mul_(x),
    lambda x, g: torch.ops.aten.tanh_backward(g, x), lambda x, g: x.sum() * g, lambda x, g: g.masked_fill_(x > 0, 0),
    lambda x, g: g.view(-1).view(5 if len(g) == 5 else 3, -1) if g.dim() == 1 else g,
)  # fmt: skip
NOT_SLOPED: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, g: g * g, lambda x, g: x / g, lambda x, g: g + 1, lambda x, g: g.abs(), lambda x, g: g.sign() * x, added,
    lambda x, g: g.cumsum(0), lambda x, g: g.roll(1, 0), lambda x, g: g[:1].expand_as(g), lambda x, g: x.clone(),
    lambda x, g: torch.where(g > 0, g, 0.0), lambda x, g: g * (g > 0), lambda x, g: torch.where(x > 0, g, x),
    lambda x, g: g.masked_fill(x > 0, 1.0), lambda x, g: g * g.norm(), lambda x, g: (x @ x.T) @ g,
    lambda x, g: g.round(), lambda x, g: torch.ones_like(g), lambda x, g: g.T.contiguous().view(g.shape),
    lambda x, g: g * float(g.sum()), lambda x, g: torch.where(x > 9, (x > 9).any() * 1.0, g),
)  # fmt: skip


@pytest.mark.parametrize("at", range(len(SLOPED)))
def test_what_multiplies_the_gradient_is_known(at: int) -> None:
    assert told(SLOPED[at]) == ""


@pytest.mark.parametrize("at", range(len(NOT_SLOPED)))
def test_what_does_anything_else_to_the_gradient_is_told(at: int) -> None:
    assert told(NOT_SLOPED[at])
