"""What a process of the HSDP tests does besides training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime import trained
from tests.runtime.programs import LAYERS
from tests.runtime.traffic import KINDS

# Groups of parameters that FSDP2 has: one for each layer and one for the rest.
GROUPS = LAYERS + 1


def parts(case: dict[str, Any]) -> dict[str, tuple[Tensor, int]]:
    """By parameter, what this device holds after a step, and how many elements the whole has."""
    model = trained.make(case)
    optimizer = trained.adamw(model)
    model.train_step(**trained.local(model, 0))
    optimizer.step()
    held = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.data, DTensor)
        held[name] = parameter.data.to_local().clone(), parameter.numel()
    return held


class Sizes(TorchDispatchMode):
    """Counts collectives by kind and by the size of their group."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace == "c10d" and name in KINDS:
            at = [argument.name for argument in func._schema.arguments].index("process_group")
            self.counts[KINDS[name], dist.ProcessGroup.unbox(args[at]).size()] += 1
        return func(*args, **(kwargs or {}))


def traffic(case: dict[str, Any]) -> dict[tuple[str, int], int]:
    """Collectives of the second step."""
    model = trained.make(case)
    model.train_step(**trained.local(model, 0))
    with Sizes() as sizes:
        model.train_step(**trained.local(model, 1))
    return dict(sizes.counts)


def broken(case: dict[str, Any], fault: str) -> dict[str, Any]:
    """A run whose copies are added up before the last microbatch, or not at all."""
    set_all_reduce, all_reduce = FSDPModule.set_requires_all_reduce, dist.all_reduce

    def early(self: FSDPModule, last: bool, *, recurse: bool = True) -> None:
        set_all_reduce(self, not last, recurse=recurse)

    def apart(tensor: Tensor, *args: Any, **how: Any) -> Any:
        return None if "op" in how else all_reduce(tensor, *args, **how)  # FSDP2 alone names the operation

    wrong: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "too early": lambda: mock.patch.object(FSDPModule, "set_requires_all_reduce", early),
        "not at all": lambda: mock.patch.object(dist, "all_reduce", apart),
    }
    with wrong[fault]():
        return trained.train(case, {})
