"""Refuse a model that communicates by itself: autopar places every collective, and knows none of the user's.

A wrapper or a sharded parameter is found on the module. A call inside ``forward`` is found when it is made by its
public name, when it fails inside torch.distributed, or in the exported graph, whichever comes first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autopar.ir.errors import UnsupportedError

_DISTRIBUTED = os.path.join(os.path.dirname(torch.__file__), "distributed") + os.sep
_LOGGER = "c10d_logger.py"  # wraps every collective

_WRAPPERS = (
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule", "ReplicateModule",
)  # fmt: skip
_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor")
_CALLS = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv",
    "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
    "send_object_list",
)  # fmt: skip
_DO = (
    "Write the model for one device, as if it saw the whole batch: autopar splits it and adds the communication "
    "that this needs"
)


def refuse_distributed(model: nn.Module) -> None:
    """Raise UnsupportedError naming the first wrapper or sharded parameter of ``model``."""
    for path, module in model.named_modules(remove_duplicate=False):
        bases = [base for base in type(module).__mro__ if base.__module__.startswith("torch.")]
        wrapper = next((base.__name__ for base in bases if base.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            raise UnsupportedError(
                f"{path or 'the model itself'} is wrapped by torch's {wrapper}, which communicates by itself. Pass the "
                "model as it is before that: autopar does what the wrapper does",
                details={"module": path, "class": wrapper},
            )
    # A model can only hold one if somebody has imported it, which takes a while.
    sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if sharded is None:
        return
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, sharded) or isinstance(tensor.data, sharded):
            raise UnsupportedError(
                f"parameter {name} is a DTensor: it is distributed already. Pass the model with whole tensors, on meta "
                "or real, such as tensor.full_tensor(); autopar distributes them",
                details={"parameter": name},
            )


def communicates(target: str) -> bool:
    """Whether an operation of a graph, by its full name, sends something."""
    return target.split(".", 1)[0] in _NAMESPACES


def refusal(call: str) -> UnsupportedError:
    """The error for ``call``, made in forward."""
    return UnsupportedError(
        f"the model communicates in its forward: it calls {call}. {_DO}", details={"call": call}
    )


def failed_call(traceback: TracebackType | None) -> str | None:
    """The function of torch.distributed in which an exception arose, by its full name."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        inside = code.co_filename.startswith(_DISTRIBUTED) and not code.co_filename.endswith(_LOGGER)
        if inside and not code.co_name.startswith("<"):
            return f"{traceback.tb_frame.f_globals.get('__name__', 'torch.distributed')}.{code.co_name}"
        traceback = traceback.tb_next
    return None


@contextmanager
def no_collectives() -> Iterator[None]:
    """Inside, a collective called by its public name is refused instead of started: nothing is sent."""
    import torch.distributed.nn.functional as differentiable

    # Imported before anything is replaced: torch keeps tables of these functions.
    from torch.distributed import _functional_collectives as functional

    kept: list[tuple[ModuleType, str, Any]] = []
    homes: list[tuple[ModuleType, str]] = [
        (dist, "torch.distributed"), (dist.distributed_c10d, "torch.distributed"),
        (differentiable, "torch.distributed.nn.functional"), (dist.nn, "torch.distributed.nn"),
        (functional, "torch.distributed._functional_collectives"),
    ]  # fmt: skip
    for home, shown in homes:
        for name in _CALLS:
            if name in vars(home):
                kept.append((home, name, vars(home)[name]))
                setattr(home, name, _refusing(f"{shown}.{name}"))
    try:
        yield
    finally:
        for home, name, original in kept:
            setattr(home, name, original)


def _refusing(call: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refusal(call)

    return refuse
