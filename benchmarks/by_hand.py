"""The same layouts written by hand with what torch offers, as its own tutorials do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

Step = Callable[[dict[str, Tensor]], Tensor]

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")


def by_hand(model: Any, mesh: DeviceMesh, *, zero: int) -> Step:
    """One step of ``model`` spread over the mesh's axes ``dp`` and ``tp``, on a rank's part of the batch.

    Requires: every sequence has equally many labels, so that a mean of means is the mean. Returns the loss over
    the global batch.
    """
    names = mesh.mesh_dim_names or ()
    losses: Callable[[], AbstractContextManager[Any]] = nullcontext
    if "tp" in names:
        _split(model, mesh["tp"])
        losses = loss_parallel
    group = None
    if "dp" in names:
        for block in (*model.model.layers, model):
            if zero:
                fully_shard(block, mesh=mesh["dp"])
            else:
                replicate(block, mesh=mesh["dp"])
        group = mesh.get_group("dp")

    def step(part: dict[str, Tensor]) -> Tensor:
        model.zero_grad(set_to_none=True)
        with losses():
            loss = model(**part).loss
            loss.backward()
        told: Tensor = loss.detach()
        if hasattr(told, "full_tensor"):
            told = told.full_tensor()
        if group is not None:
            dist.all_reduce(told, group=group)
            told /= group.size()
        return told

    return step


def plain(model: nn.Module) -> Step:
    """One process without autopar."""

    def step(part: dict[str, Tensor]) -> Tensor:
        model.zero_grad(set_to_none=True)
        loss: Tensor = model(**part).loss
        loss.backward()
        return loss.detach()

    return step


def _split(model: Any, mesh: DeviceMesh) -> None:
    """As Megatron does: columns then rows; the vocabulary of the head is cut, its logits are never whole."""
    layer: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in COLUMNS}
    layer |= {name: RowwiseParallel() for name in ROWS}
    for block in model.model.layers:
        parallelize_module(block, mesh, layer)
    whole: dict[str, ParallelStyle] = {
        "model.embed_tokens": ColwiseParallel(output_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, whole)
