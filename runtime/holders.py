"""Holders: the modules that FSDP2 sees, one for each call of a block and one for the root.

Shard first, then bind: ``fully_shard`` *replaces* the parameters of a holder, so a skeleton is filled from
the holders afterwards. Gradients are sums, because the loss is already divided by its global denominator:
the divide factor is 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from autopar.ir.program import Parameter
from autopar.runtime import torch_private
from autopar.runtime.devices import Here
from autopar.runtime.dtensors import filled
from autopar.runtime.dtypes import TORCH_DTYPES
from autopar.runtime.reading import local_of
from autopar.runtime.step_sums import StepSums


class Holder(nn.Module):
    """Parameters with the same owner, and the function that computes with them.

    ``inner`` holds the parameters of the same block whose gradients are reduced over other axes.
    """

    def __init__(
        self, parameters: Sequence[tuple[Parameter, nn.Parameter]], inner: Holder | None = None
    ) -> None:
        super().__init__()
        self.function: Callable[..., Any] | None = None
        self.inner = inner
        self.zero = 0
        self.stays = True
        self.sums: StepSums | None = None
        self.local: Callable[[DTensor], Tensor] = local_of
        self.described = {parameter.fqn: (f"p{i}", parameter) for i, (parameter, _) in enumerate(parameters)}
        self.padded = {one.fqn for one, _ in parameters if one.layout.is_padded(one.type.shape)}
        for i, (_, held) in enumerate(parameters):
            self.register_parameter(f"p{i}", held)

    def forward(self, *inputs: Tensor) -> Any:
        if self.inner is not None:
            self.inner.function = self.function
            return self.inner(*inputs)
        assert self.function is not None
        return self.function(*inputs)

    def read(self, fqn: str) -> Tensor:
        """This device's tensor, as the program computes with it. Requires: within ``forward``."""
        name, parameter = self.described[fqn]
        held: Tensor = getattr(self, name)
        if isinstance(held, DTensor):
            held = self.local(held)
            held = filled(held, parameter.layout, parameter.type.shape) if fqn in self.padded else held
        if self.sums is not None:
            held = self.sums.now(parameter, held)
        dtype = TORCH_DTYPES[parameter.compute_dtype]
        return held if held.dtype == dtype else held.to(dtype)

    def all_held(self) -> dict[str, nn.Parameter]:
        """Parameters by original name, as they are now: sharded outside ``forward``."""
        held = {fqn: getattr(self, name) for fqn, (name, _) in self.described.items()}
        return held if self.inner is None else {**self.inner.all_held(), **held}

    def find(self, fqn: str) -> Holder | None:
        """The holder of this chain that has the parameter."""
        if fqn in self.described:
            return self
        return None if self.inner is None else self.inner.find(fqn)


def make_holder(
    parameters: Sequence[tuple[Parameter, nn.Parameter]],
    here: Here,
    *,
    zero: int,
    reshard: bool = True,
    children: Sequence[nn.Module] = (),
    root_axes: tuple[str, ...] = (),
    staged: bool = False,
) -> Holder:
    """A chain of holders, one for each set of runtime axes, sharded or replicated over them.

    ``reshard``: parameters of ZeRO 3 are freed between uses; else they stay until the step is over.
    ``children`` are the holders of blocks, already made, for the root; ``root_axes`` its axes where it has
    no parameter of its own. ``staged``: the root is a pipeline stage. Torch's pipelining reduces what it finds through
    a stage's topmost module, and through a replicated one it finds no sharded ones: their gradients would be missing.
    """
    by_axes: dict[_Over, list[tuple[Parameter, nn.Parameter]]] = {}
    for parameter, held in parameters:
        by_axes.setdefault(_over(parameter, here), []).append((parameter, held))
    if root_axes and not any(axes for axes, _ in by_axes):
        by_axes[root_axes, ()] = []
    holder = Holder(by_axes.pop(((), ()), []))
    holder.blocks = nn.ModuleList(children)
    for index, ((axes, inside), members) in enumerate(sorted(by_axes.items())):
        own = set(holder.parameters()) - {p for child in children for p in child.parameters()}
        holder = Holder(members, holder if index or own or children else None)
        unowned = _plain(holder)
        mesh = here.storage_mesh(axes, inside)
        _distribute(holder, mesh, zero=zero, reshard=reshard, ignored=unowned)
    if staged and not zero and any(child.zero for child in children if isinstance(child, Holder)):
        holder = Holder([], holder)
        mesh = here.storage_mesh(root_axes, ())
        _distribute(holder, mesh, zero=1, reshard=reshard, ignored=_plain(holder))
    return holder


# Runtime axes of a parameter, and among how many neighbours along each it is cut; () among all.
_Over: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]


def _over(parameter: Parameter, here: Here) -> _Over:
    axes = tuple(axis for axis in parameter.runtime_axes if axis in here.groups)
    known = dict(zip(parameter.runtime_axes, parameter.inside, strict=False))
    return axes, tuple(known[axis] for axis in axes) if known else ()


def _plain(holder: Holder) -> set[nn.Parameter]:
    """Parameters below that no FSDP group has: they are ignored by this one too."""
    found: set[nn.Parameter] = set()
    for module in holder.modules():
        if module is not holder and isinstance(module, Holder) and not isinstance(module, FSDPModule):
            found.update(module.parameters(recurse=False))
    return found


def _distribute(
    holder: Holder, mesh: DeviceMesh, *, zero: int, reshard: bool, ignored: set[nn.Parameter]
) -> None:
    described = [parameter for _, parameter in holder.described.values()]
    compute = {TORCH_DTYPES[parameter.compute_dtype] for parameter in described}
    stored = {TORCH_DTYPES[parameter.type.dtype] for parameter in described}
    wide = torch.float64 if stored == {torch.float64} else torch.float32
    policy = MixedPrecisionPolicy(
        param_dtype=compute.pop() if len(compute) == 1 else None, reduce_dtype=wide, cast_forward_inputs=False
    )
    holder.zero, holder.stays = zero, zero < 3 or not reshard
    if zero == 0:
        torch_private.replicate(holder, mesh, policy, ignored)
    else:
        parts = mesh.size(mesh.ndim - 1)
        dims = {id(getattr(holder, name)): one.cut_dim(parts) for name, one in holder.described.values()}
        fully_shard(
            holder,
            mesh=mesh,
            reshard_after_forward=not holder.stays,
            mp_policy=policy,
            ignored_params=ignored,
            shard_placement_fn=lambda parameter: Shard(dims[id(parameter)]),
        )
    assert isinstance(holder, FSDPModule)
    holder.set_gradient_divide_factor(1.0)
    holder.set_force_sum_reduction_for_comms(True)


def set_gradient_sync(holder: Holder, last: bool) -> None:
    """Whether the next backward ends a step.

    Before the end gradients are only accumulated, whole, where ZeRO does not cut them (0 and 1); from level 2 on they
    are reduced every microbatch, since keeping them whole is what it saves; among the copies of their parts, where
    there are any, once a step. Gathered parameters that stay are
    gathered once a step: freed with the last backward, not between microbatches.
    """
    for module in holder.modules():
        if isinstance(module, FSDPModule):
            zero, stays = getattr(module, "zero", 0), getattr(module, "stays", True)
            module.set_requires_gradient_sync(last or zero >= 2, recurse=False)
            module.set_requires_all_reduce(last, recurse=False)
            module.set_reshard_after_backward(last or not stays, recurse=False)
