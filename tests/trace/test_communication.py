"""A model that communicates by itself is refused by name, with the module and the line, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce as imported_by_name
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from autopar.ir.errors import UnsupportedError
from autopar.passes.trace import trace
from tests.harness import run_processes


class Calling(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def in_place(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def by_name(x: Tensor) -> Tensor:
    y = x * 1
    imported_by_name(y)
    return y


def into_list(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x)]
    dist.all_gather(parts, x)
    return parts[0]


def objects(x: Tensor) -> Tensor:
    dist.all_gather_object([None], 3)
    return x


def waiting(x: Tensor) -> Tensor:
    dist.barrier()
    return x


def with_gradient(x: Tensor) -> Tensor:
    return differentiable.all_reduce(x)  # type: ignore[no-any-return]


def as_a_function(x: Tensor) -> Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD)  # type: ignore[arg-type, no-any-return]


def gathered_as_a_function(x: Tensor) -> Tensor:
    return functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)  # type: ignore[arg-type, no-any-return]


def as_an_operation(x: Tensor) -> Tensor:
    sent = torch.ops._c10d_functional.all_reduce(x, "sum", "0")
    return torch.ops._c10d_functional.wait_tensor(sent)  # type: ignore[no-any-return]


CALLS: dict[Callable[[Tensor], Tensor], str] = {
    in_place: "all_reduce", by_name: "all_reduce", into_list: "all_gather", objects: "all_gather_object",
    waiting: "barrier", with_gradient: "nn.functional.all_reduce", as_a_function: "all_reduce",
    gathered_as_a_function: "all_gather", as_an_operation: "_c10d_functional.all_reduce",
}  # fmt: skip


def refused(call: Callable[[Tensor], Tensor]) -> str:
    model = nn.Sequential(nn.Linear(3, 3), Calling(call))
    with pytest.raises(UnsupportedError, match="the model communicates in its forward") as caught:
        trace(model, (torch.randn(2, 3),))
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.parametrize(("call", "name"), CALLS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_call_in_forward_is_refused_with_its_name_module_and_line(call, name):
    """Where no process group runs: the plan is made on a laptop."""
    message = refused(call)
    assert f"{name}" in message.split("Write the model")[0]
    assert "test_communication.py:" in message
    assert "module: 1 (Calling)" in message or "(1 test_communication.py:" in message
    assert "Write the model for one device" in message


def refusals() -> dict[str, str]:
    """In a running group; only the second rank traces, so that whatever was sent would wait for ever."""
    return {call.__name__: refused(call) for call in CALLS} if dist.get_rank() == 1 else {}


def test_in_a_running_group_a_call_is_refused_without_being_sent():
    _, messages = run_processes(2, refusals)
    for call, name in CALLS.items():
        assert name in messages[call.__name__].split("Write the model")[0]
        assert "test_communication.py:" in messages[call.__name__]


def test_after_a_trace_the_collectives_are_torchs_again():
    before = (dist.all_reduce, dist.barrier, differentiable.all_reduce)
    refused(in_place)
    assert (dist.all_reduce, dist.barrier, differentiable.all_reduce) == before


@pytest.fixture
def _group():
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=10))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("wrapper", [DistributedDataParallel, fully_shard, nn.DataParallel])
def test_a_wrapped_module_is_refused_by_its_path(wrapper):
    inner = nn.Linear(3, 3)
    model = nn.Sequential(nn.Identity(), wrapper(inner))
    expected = r"1 is wrapped by torch's (Dist|FSDP|Data).*as it is before that"
    with pytest.raises(UnsupportedError, match=expected) as caught:
        trace(model, (torch.randn(2, 3),))
    assert caught.value.details["module"] == "1"


@pytest.mark.usefixtures("_group")
def test_a_distributed_parameter_is_refused_by_name():
    inner = nn.Linear(3, 3)
    inner.weight = nn.Parameter(distribute_tensor(inner.weight, init_device_mesh("cpu", (1,))))
    model = nn.Sequential(inner)
    with pytest.raises(UnsupportedError, match=r"parameter 0\.weight is a DTensor"):
        trace(model, (torch.randn(2, 3),))
