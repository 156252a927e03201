"""Gradients of a step are those of the user's parameters, in the tensors that the user may hold."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from autopar.runtime.leaves import Leaves
from tests import harness


def held(requires_grad: bool = True) -> DTensor:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    made = DTensor.from_local(torch.ones(3, dtype=torch.float64), mesh)
    parameter = made.detach().requires_grad_(requires_grad)
    assert isinstance(parameter, DTensor)
    return parameter


def raise_(what: str) -> None:
    raise KeyError(what)


def gradient(parameter: DTensor) -> Tensor | None:
    return parameter.grad


def in_steps() -> list[list[float]]:
    """Two microbatches and a second step into the gradient that is held; a broken step; what is frozen; no step."""
    leaves, parameter, frozen = Leaves(), held(), held(requires_grad=False)
    found = []
    with leaves.step():
        for factor in (1, 2):
            (leaves.part(parameter) * factor * leaves.part(frozen)).sum().backward()
        assert gradient(parameter) is None
    first = gradient(parameter)
    assert isinstance(first, DTensor)
    found.append(first.to_local().tolist())
    with leaves.step():
        (leaves.part(parameter) * 4).sum().backward()
    assert gradient(parameter) is first
    found.append(first.to_local().tolist())
    with suppress(KeyError), leaves.step():
        (leaves.part(parameter) * 8).sum().backward()
        raise_("broken")
    (leaves.part(parameter) * 16).sum().backward()
    found.append(first.to_local().tolist())
    assert frozen.grad is None
    return found


def onto_another_placement() -> list[float]:
    """A gradient that the user set in another placement than the parameter's: each of two ranks gives ones."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    parameter = distribute_tensor(torch.ones(4), mesh, [Shard(0)]).detach().requires_grad_()
    assert isinstance(parameter, DTensor)
    parameter.grad = distribute_tensor(torch.full((4,), 2.0), mesh, [Replicate()])
    leaves = Leaves()
    with leaves.step():
        leaves.part(parameter).sum().backward()
    found = parameter.grad
    assert isinstance(found, DTensor)
    return found.full_tensor().tolist()


def test_a_gradient_that_is_placed_in_another_way_is_added_to() -> None:
    assert harness.run_processes(2, onto_another_placement) == [[3.0] * 4] * 2


def test_gradients_add_up_where_the_user_sees_them() -> None:
    assert harness.run_processes(1, in_steps)[0] == [[3.0] * 3, [7.0] * 3, [31.0] * 3]
