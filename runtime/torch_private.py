"""Every private name of torch that the runtime uses, each with its reason.

Checked on torch 2.11 to 2.13; a name that moves is mended here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]  # not in its stub
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor


def flattened(mesh: DeviceMesh, axes: Sequence[str]) -> DeviceMesh:
    """One-dimensional mesh over several axes. ``DeviceMesh._flatten``: no public way to shard over both."""
    if len(axes) == 1:
        return mesh[axes[0]]
    return mesh[tuple(axes)]._flatten("_".join(axes))


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


class SettledStage(PipelineStage):
    """A stage whose shapes are given, so that no trial run is made.

    ``PipelineStage._post_metadata_inference_cleanup`` clears the gradients of FSDP2's parameters, as those of a trial
    run, whenever a schedule begins or changes between evaluation and training: those of earlier steps would be lost.
    """

    def _post_metadata_inference_cleanup(self) -> None:
        """Nothing was inferred."""


def spec_of(held: DTensor) -> Any:
    """What a DTensor is beside its local tensor. ``DTensor._spec``: no public way to make another like it cheaply."""
    return held._spec


def wrapped(part: Tensor, spec: Any) -> DTensor:
    """A local tensor as a DTensor, unchecked. FSDP2 wraps its parameters so; ``DTensor.from_local`` takes ten times
    as long, because it is differentiable."""
    return DTensor(part, spec, requires_grad=False)


def is_message(work: Any) -> bool:
    """Whether a ``Work`` sends or receives, and is no collective. ``Work._get_op_type``: nothing public says so."""
    return int(work._get_op_type()) in (int(OpType.SEND), int(OpType.RECV), int(OpType.RECVANYSOURCE))
