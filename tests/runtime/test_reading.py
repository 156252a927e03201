"""The gradient of a parameter is a tensor of its own, and no copy where it is one already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from autopar.runtime import torch_private
from autopar.runtime.reading import local_of

X = torch.arange(12.0).reshape(3, 4) / 7


@pytest.fixture(autouse=True)
def world(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


def read(parameter: nn.Parameter) -> Tensor:
    assert isinstance(parameter, DTensor)
    return local_of(parameter)


def held(*shape: int) -> nn.Parameter:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    return nn.Parameter(distribute_tensor(torch.ones(shape), mesh, [Replicate()]))


# What is computed with parameters of which shapes, and which of their gradients has to be copied for its holders.
CASES: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], list[bool]]] = {
    "linear": (lambda w, b: nn.functional.linear(X, w, b).tanh(), [(5, 4), (5,)], [False, False]),
    "norm": (lambda a, b: nn.functional.layer_norm(X, (4,), a, b).tanh(), [(4,), (4,)], [False, False]),
    "one gradient of two": (lambda a, b: (X + a + b).tanh(), [(3, 4), (3, 4)], [True, False]),
    "views of one gradient": (lambda a, b: torch.cat([a, b]).tanh(), [(3, 4), (3, 4)], [True, False]),
    "expanded": (lambda a: a, [(3, 4)], []),  # copied before anybody is asked
}


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_copied_where_something_else_holds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes, expected = CASES[name]
    parameters = [held(*shape) for shape in shapes]
    copied: list[bool] = []
    original = torch_private.has_no_other_holder

    def asked(tensor: Tensor) -> bool:
        copied.append(not original(tensor))
        return not copied[-1]

    monkeypatch.setattr(torch_private, "has_no_other_holder", asked)
    plain = [nn.Parameter(torch.ones(shape)) for shape in shapes]
    for _ in range(2):  # the second backward adds to what the first left, in place
        function(*map(read, parameters)).sum().backward()
        function(*plain).sum().backward()
    gradients = [parameter.grad.to_local() for parameter in parameters if isinstance(parameter.grad, DTensor)]
    for own, wanted in zip(gradients, plain, strict=True):
        assert torch.equal(own, wanted.grad)  # type: ignore[arg-type]
    memory = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    assert len(memory) == len(gradients)
    assert sorted(copied[: len(shapes)]) == sorted(expected)
