"""Every private name of torch that the runtime uses, each with its reason.

Checked on torch 2.11 to 2.13; a name that moves is mended here and nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]  # not in its stub
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.utils import _python_dispatch


def flattened(mesh: DeviceMesh, axes: Sequence[str]) -> DeviceMesh:
    """One-dimensional mesh over several axes. ``DeviceMesh._flatten``: no public way to shard over both."""
    if len(axes) == 1:
        return mesh[axes[0]]
    return mesh[tuple(axes)]._flatten("_".join(axes))


def two_levels(mesh: DeviceMesh, axes: Sequence[str], inside: Sequence[int]) -> DeviceMesh:
    """Mesh of (groups, neighbours) over several axes: along each, ``inside`` neighbours make a part of a group.

    ``DeviceMesh._unflatten`` and ``_concatenate``: FSDP2 knows meshes of two dims, replicated and sharded, only as
    meshes with the same root as those of its parameters, and the root has the axes whole. A collective.
    """
    far: list[DeviceMesh] = []
    near: list[DeviceMesh] = []
    for axis, neighbours in zip(axes, inside, strict=True):
        whole = mesh[axis]
        groups = whole.size() // neighbours
        if groups > 1 and neighbours > 1:
            names = (f"{axis}_across_{groups}", f"{axis}_inside_{neighbours}")
            both = whole._unflatten(0, (groups, neighbours), names)
            far.append(both[names[0]])
            near.append(both[names[1]])
        else:
            (near if neighbours > 1 else far).append(whole)
    return DeviceMesh._concatenate([_joined(far), _joined(near)])


def _joined(meshes: list[DeviceMesh]) -> DeviceMesh:
    """One dim of several."""
    if len(meshes) == 1:
        return meshes[0]
    names = [name for mesh in meshes for name in mesh.mesh_dim_names or ()]
    return DeviceMesh._concatenate(meshes)._flatten("_".join(names))


def replicate(
    module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy, ignored: set[nn.Parameter]
) -> Any:
    """Data parallelism without sharding, on the machinery of FSDP2.

    ``torch.distributed._composable.replicate_with_fsdp``: the public ``replicate`` and DDP know neither
    DTensor parameters nor ``fully_shard`` modules beside them, and a two-dimensional mesh with a sharded
    axis of size 1 would put that axis into every parameter's placements.
    """
    from torch.distributed._composable.replicate_with_fsdp import replicate as with_fsdp

    return with_fsdp(module, mesh=mesh, mp_policy=policy, ignored_params=ignored)


def chunks(tensor: DTensor) -> list[list[tuple[int, int]]]:
    """Where in the whole a checkpoint finds this device's parts: for each dim where it begins and its size.

    ``DTensor.__create_chunk_list__``: what ``torch.distributed.checkpoint`` itself asks.
    """
    found = tensor.__create_chunk_list__()
    return [list(zip(map(int, chunk.offsets), map(int, chunk.sizes), strict=True)) for chunk in found]


def forget_meshes() -> None:
    """Empty what DTensor remembers of operations: results that name meshes of process groups that may be gone.

    ``torch.distributed.tensor.debug._clear_sharding_prop_cache`` and the caches of redistribution: equal meshes of two
    worlds are one entry there, so after ``destroy_process_group`` and a new world DTensors would name groups
    of the old one. There is no public way.
    """
    from torch.distributed.tensor import _redistribute, debug

    clear = (
        getattr(debug, "_clear_sharding_prop_cache", None),
        getattr(getattr(_redistribute, "_gen_transform_infos", None), "cache_clear", None),
        getattr(_redistribute, "clear_redistribute_planner_cache", None),
    )
    for function in clear:
        if function is not None:
            function()


# Torch 2.11 sends a gradient back for every value that crosses between stages, and whole numbers have none.
WHOLE_NUMBERS_CROSS = hasattr(PipelineStage, "_post_metadata_inference_cleanup")


class SettledStage(PipelineStage):
    """A stage whose shapes are given, so that no trial run is made, and which holds only what it still needs.

    ``PipelineStage._post_metadata_inference_cleanup`` clears the gradients of FSDP2's parameters, as those of a trial
    run, whenever a schedule begins or changes between evaluation and training: those of earlier steps would be lost.

    ``PipelineStage._prepare_forward_infra`` and ``_prepare_backward_infra`` make a buffer for what arrives with each
    microbatch, and keep them all: with many microbatches they are more than all else. Here they are made on no device,
    and each is a real one from when it is received into until what arrived is passed on.
    """

    def _post_metadata_inference_cleanup(self) -> None:
        """Nothing was inferred."""

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._nowhere():
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._nowhere():
            return super()._prepare_backward_infra(*args, **kwargs)

    @contextmanager
    def _nowhere(self) -> Iterator[None]:
        here, self.device = self.device, torch.device("meta")
        try:
            yield
        finally:
            self.device = here

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        _move(self.args_recv_info[fwd_chunk_id], self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        _move(self.grad_recv_info.get(bwd_chunk_id, ()), self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """As torch's; where no backward follows, the stage does not keep what it was given."""
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        _move(self.args_recv_info[fwd_chunk_id], torch.device("meta"))
        if not self.has_backward:
            made, _ = self.fwd_cache[fwd_chunk_id]
            self.fwd_cache[fwd_chunk_id] = made, []
        return output

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """As torch's; where no backward follows, the stage does not keep what it sends."""
        sent = super().get_fwd_send_ops(fwd_chunk_id)
        if not self.has_backward:
            del self.fwd_cache[fwd_chunk_id]
        return sent

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """As torch's; the schedule keeps the losses of a step, which must not keep all that they were made of."""
        super().backward_one_chunk(bwd_chunk_id, loss, *args, **kwargs)
        _move(self.grad_recv_info.get(bwd_chunk_id, ()), torch.device("meta"))
        if loss is not None and not self.is_first:
            loss.detach_()


def _move(received: Iterable[Any], device: torch.device) -> None:
    """Give each message of a microbatch an empty buffer there; the first stage's arguments have none."""
    for message in received:
        old = getattr(message, "buffer", None)
        if old is not None and old.device != device:
            message.buffer = torch.empty_like(old, device=device, requires_grad=old.requires_grad)


def spec_of(held: DTensor) -> Any:
    """What a DTensor is beside its local tensor. ``DTensor._spec``: no public way to make another like it cheaply."""
    return held._spec


def local(held: DTensor) -> Tensor:
    """The local tensor of a DTensor that no collective is about to fill, outside autograd. ``DTensor._local_tensor``:
    ``to_local`` looks up the same in six times as long."""
    return held._local_tensor


def wrapped(part: Tensor, spec: Any) -> DTensor:
    """A local tensor as a DTensor, unchecked. FSDP2 wraps its parameters so; ``DTensor.from_local`` takes ten times
    as long, because it is differentiable."""
    return DTensor(part, spec, requires_grad=False)


class _Counted(torch.autograd.Function):
    """Notes how often a gradient that nobody else has is held while a backward has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, noted: list[int]) -> Tensor:
        ctx.noted = noted
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (own,) = gradients
        ctx.noted.append(Tensor._use_count(own))  # type: ignore[attr-defined]
        return own, None


@functools.cache
def _uses_in_backward() -> int:
    """Torch 2.11 holds the gradient that it hands to a backward while that runs, 2.13 does not."""
    noted: list[int] = []
    with torch.enable_grad():
        x = torch.zeros(1, requires_grad=True)
        torch.autograd.grad(_Counted.apply(x, noted) * 2, x, torch.ones(1))  # type: ignore[no-untyped-call]
    return noted[0]


def has_no_other_holder(tensor: Tensor) -> bool:
    """Whether the backward of a Function alone holds this gradient and its memory; False where torch cannot tell.

    ``Tensor._use_count`` and ``torch._C._storage_Use_Count``: so autograd decides whether a leaf may keep the gradient
    that it is given, but it does not look inside a wrapper. The counts are those of the tensor, of the one that it is a
    view of (which the view and the name here hold), and of their memory (these and the handle here).
    """
    count = getattr(Tensor, "_use_count", None)
    if count is None or count(tensor) != _uses_in_backward():
        return False
    base = tensor._base
    alone = base is None or count(base) == 2
    holders = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return alone and holders == (2 if base is None else 3)


def group_named(name: str) -> dist.ProcessGroup:
    """The process group of a name, as functional collectives find theirs: an operator takes no group as an argument."""
    found: dist.ProcessGroup = dist.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]
    return found


def in_dispatch_mode() -> bool:
    """Whether a ``TorchDispatchMode`` sees the operators that are called here. ``_get_current_dispatch_mode``: nothing
    public says so."""
    return _python_dispatch._get_current_dispatch_mode() is not None


def is_message(work: Any) -> bool:
    """Whether a ``Work`` sends or receives, and is no collective. ``Work._get_op_type``: nothing public says so."""
    return int(work._get_op_type()) in (int(OpType.SEND), int(OpType.RECV), int(OpType.RECVANYSOURCE))
