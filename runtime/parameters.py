"""Parameters and buffers of a program, cut from whole tensors, under the names of the user's model.

``store`` makes them; a *skeleton* of modules holds them under their original paths for optimizers,
``state_dict`` and checkpoints, and holders (``holders.py``) hold them for computing. Mesh axes that the
runtime owns are not cut here: FSDP2 does that to the whole holder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autopar.ir.errors import UnsupportedError
from autopar.ir.layout import Layout, Partial, R, Shard
from autopar.ir.program import Parameter
from autopar.runtime.devices import Here
from autopar.runtime.dtensors import contiguous, local_part, placements
from autopar.runtime.dtypes import TORCH_DTYPES

# FSDP2 joins its own axis with at most two of a parameter's.
FSDP_MODEL_AXES = 2

# Gives the whole tensor of a parameter or buffer by name: a real model's, a checkpoint's, an initialiser's.
Whole = Callable[[str], Tensor]


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a program does not say about a model: second names of tied tensors, buffers that are not saved.

    ``order``: all names as the model lists them, so that optimizers and checkpoints find the same order.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    not_saved: frozenset[str] = frozenset()
    order: tuple[str, ...] = ()

    def saves(self, name: str) -> bool:
        """Whether the model's state has a buffer of this name; where no names are known, all of them."""
        return name not in self.not_saved and (not self.order or name in self._known)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.order)


def names_of(model: nn.Module) -> Names:
    """Ties and unsaved buffers of a model, real or on meta."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        if (known := first.setdefault(id(tensor), name)) != name:
            aliases[name] = known
    saved = model.state_dict(keep_vars=True)
    order = [
        f"{path}.{name}".removeprefix(".")
        for path, module in model.named_modules(remove_duplicate=False)
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if tensor is not None
    ]
    return Names(
        aliases=aliases, not_saved=frozenset(n for n, _ in model.named_buffers() if n not in saved), order=tuple(order)
    )


def whole_of(model: nn.Module) -> Whole:
    """The tensors of a real model."""
    held = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return lambda name: held[name].detach()


def initialised(shapes: Mapping[str, Parameter], init: Callable[[str, Tensor], None]) -> Whole:
    """Tensors of a model on meta, made one at a time by ``init(name, empty tensor)``."""

    def whole(name: str) -> Tensor:
        kind = shapes[name].type
        tensor = torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype])
        with torch.no_grad():
            init(name, tensor)
        return tensor

    return whole


def model_axes(parameter: Parameter, here: Here) -> tuple[str, ...]:
    """Axes over which the parameter is a DTensor before FSDP2 sees it.

    All that are longer than 1 and not the runtime's; with FSDP2, which joins at most two, only those that
    shard it if there are more. A parameter on no axis at all is a DTensor over the whole mesh.
    """
    layout = parameter.layout
    runtime = [axis for axis in parameter.runtime_axes if axis in here.groups]
    found = tuple(a for a in layout.mesh.names if a in here.groups and a not in parameter.runtime_axes)
    if runtime and len(found) > FSDP_MODEL_AXES:
        found = tuple(axis for axis in found if isinstance(layout[axis], Shard))
        if len(found) > FSDP_MODEL_AXES:
            raise UnsupportedError(
                f"{parameter.fqn} is sharded over {', '.join(found)} and its gradient reduced by FSDP2 over "
                f"{', '.join(runtime)}: FSDP2 knows at most {FSDP_MODEL_AXES} such axes"
            )
    return found if found or runtime else layout.mesh.names


def store(parameter: Parameter, whole: Whole, here: Here) -> Tensor:
    """The parameter or buffer of this device, not yet cut over the runtime's axes.

    Raises UnsupportedError where the layout has no contiguous form: a checkpoint could not hold it.
    """
    tensor = whole(parameter.fqn)
    if tuple(tensor.shape) != parameter.type.shape:
        raise UnsupportedError(
            f"{parameter.fqn} has shape {list(tensor.shape)}, "
            f"the program was made for {list(parameter.type.shape)}"
        )
    layout = parameter.layout
    for axis in parameter.runtime_axes:
        layout = layout.replace(axis, R)
    if any(isinstance(placement, Partial) for placement in layout.placements) or layout != contiguous(layout):
        raise UnsupportedError(f"{parameter.fqn} cannot be stored as {layout}: its shards are not contiguous")
    part = local_part(tensor, layout, here.coordinate).to(here.device, TORCH_DTYPES[parameter.type.dtype])
    axes = model_axes(parameter, here)
    if parameter.buffer:
        return part if not _cut(layout) else _dtensor(part, layout, axes, here, parameter)
    trains = parameter.trainable and part.is_floating_point()
    held = _dtensor(part, layout, axes, here, parameter) if axes else part
    return nn.Parameter(held, requires_grad=trains)


class Stored:
    """Tensors of this device, each cut from the whole when it is asked for."""

    def __init__(self, whole: Whole, here: Here) -> None:
        self._whole, self._here = whole, here

    def tensor(self, parameter: Parameter) -> Tensor:
        return store(parameter, self._whole, self._here)

    def constant(self, name: str, layout: Layout) -> Tensor:
        return local_part(self._whole(name), layout, self._here.coordinate).to(self._here.device)


class StoredAhead(Stored):
    """The tensors that one rank of a pipeline holds: every rank asks for all of them, in the same order.

    ``wanted``: how many stages of this rank hold each tensor, which is then another one for each of them;
    ``constants`` with their layouts.
    """

    def __init__(
        self, whole: Whole, here: Here, parameters: Sequence[Parameter], constants: Mapping[str, Layout],
        wanted: Mapping[str, int],
    ) -> None:  # fmt: skip
        super().__init__(whole, here)
        self._cut: dict[str, Tensor] = {}
        self._left = dict(wanted)
        for parameter in parameters:
            if self._left.get(parameter.fqn):
                self._cut[parameter.fqn] = super().tensor(parameter)
            else:
                whole(parameter.fqn)
        for name, layout in constants.items():
            self._cut[name] = super().constant(name, layout)

    def tensor(self, parameter: Parameter) -> Tensor:
        found = self._cut.pop(parameter.fqn)
        self._left[parameter.fqn] -= 1
        if self._left[parameter.fqn]:
            self._cut[parameter.fqn] = copied(found)
        return found

    def constant(self, name: str, layout: Layout) -> Tensor:
        return self._cut[name]


def copied(tensor: Tensor) -> Tensor:
    """Another tensor with the same values; of a parameter a parameter."""
    other = tensor.detach().clone()
    return nn.Parameter(other, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other


def _cut(layout: Layout) -> bool:
    return any(isinstance(placement, Shard) for placement in layout.placements)


def _dtensor(
    part: Tensor, layout: Layout, axes: tuple[str, ...], here: Here, parameter: Parameter
) -> DTensor:
    shape = torch.Size(parameter.type.shape)
    stride = torch.empty(shape, device="meta").stride()
    mesh = here.submesh(axes)
    return DTensor.from_local(
        part, mesh, placements(layout, axes), run_check=False, shape=shape, stride=stride
    )


class Part(nn.Module):
    """A module of the skeleton: names, and nothing that runs."""


def register(top: nn.Module, name: str, tensor: Tensor, *, persistent: bool = True) -> None:
    """Put a parameter or buffer into the skeleton under its original path; replaces what stands there."""
    *path, leaf = name.split(".")
    at = top
    for step in path:
        if step not in at._modules:
            at._modules[step] = Part()
        found = at._modules[step]
        assert found is not None
        at = found
    if isinstance(tensor, nn.Parameter):
        at._parameters[leaf] = tensor
    elif leaf in at._buffers:
        at._buffers[leaf] = tensor
    else:
        at.register_buffer(leaf, tensor, persistent=persistent)
