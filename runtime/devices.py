"""What this process is on the device mesh: its position, its groups, its device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.ir.errors import MismatchError
from autopar.ir.mesh import Mesh, across, within
from autopar.ir.program import Program
from autopar.runtime import torch_private


@dataclass(frozen=True, kw_only=True)
class Here:
    """This process on the axes of a program's mesh. ``groups`` holds the axes longer than 1, ``parts`` the groups of
    neighbours on a node along an axis and of one from each node, by their names (``ir/mesh.py``)."""

    device_mesh: DeviceMesh
    device: torch.device
    coordinate: dict[str, int]
    groups: dict[str, dist.ProcessGroup]
    parts: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    _levels: dict[tuple[tuple[str, ...], tuple[int, ...]], DeviceMesh] = field(default_factory=dict)

    def size(self, axis: str) -> int:
        return self.device_mesh[axis].size()

    def submesh(self, axes: tuple[str, ...]) -> DeviceMesh:
        """The device mesh of some axes, which must stand in the mesh's order."""
        names = self.device_mesh.mesh_dim_names
        return self.device_mesh if axes == names else self.device_mesh[axes if len(axes) > 1 else axes[0]]

    def storage_mesh(self, axes: tuple[str, ...], inside: tuple[int, ...]) -> DeviceMesh:
        """The mesh over which FSDP2 has parameters: of one dim, or (copies, parts) where ``inside`` says so.

        A collective when it is first asked for: every rank asks in the same order.
        """
        if (axes, inside) not in self._levels:
            mesh = self.device_mesh
            made = torch_private.two_levels(mesh, axes, inside) if inside else torch_private.flattened(mesh, axes)
            self._levels[axes, inside] = made
        return self._levels[axes, inside]

    @property
    def named(self) -> dict[str, dist.ProcessGroup]:
        """``groups`` and ``parts``."""
        return {**self.groups, **self.parts}

    def divide(self, program: Program) -> None:
        """Make ``parts`` of every axis along which the program exchanges rows in two steps.

        A collective of all ranks: each makes the groups of all of them, in the same order.
        """
        for graph in (program.graph, *program.graph.blocks):
            for node in graph.nodes:
                axis, inside = str(node.attr("exchange")), node.attr("inside")
                if isinstance(inside, int) and within(axis) not in self.parts:
                    rows = self._rows(axis)
                    near = [row[first : first + inside] for row in rows for first in range(0, len(row), inside)]
                    far = [row[place::inside] for row in rows for place in range(inside)]
                    self.parts.update({within(axis): _own(near), across(axis): _own(far)})

    def _rows(self, axis: str) -> list[list[int]]:
        """The ranks of each group along an axis."""
        at = (self.device_mesh.mesh_dim_names or ()).index(axis)
        rows: list[list[int]] = self.device_mesh.mesh.movedim(at, -1).reshape(-1, self.size(axis)).tolist()
        return rows


def _own(every: list[list[int]]) -> dist.ProcessGroup:
    """A group of each of these ranks is made; this process's own."""
    made = [(ranks, dist.new_group(ranks)) for ranks in every]
    own: dist.ProcessGroup = next(group for ranks, group in made if dist.get_rank() in ranks)
    return own


def here(mesh: Mesh, device_mesh: DeviceMesh) -> Here:
    """Requires: ``device_mesh`` has every axis of ``mesh`` with its size. Raises MismatchError if not."""
    names = device_mesh.mesh_dim_names or ()
    have = dict(zip(names, device_mesh.shape, strict=True)) if names else {}
    for axis, size in mesh.axes:
        if have.get(axis) != size:
            raise MismatchError(f"the program needs mesh axis {axis}={size}, the process group has {have}")
    device = torch.device(device_mesh.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    return Here(
        device_mesh=device_mesh,
        device=device,
        coordinate={axis: device_mesh.get_local_rank(axis) for axis in mesh.names},
        groups={axis: device_mesh.get_group(axis) for axis, size in mesh.axes if size > 1},
    )
