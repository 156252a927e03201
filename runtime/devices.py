"""What this process is on the device mesh: its position, its groups, its device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.ir.errors import MismatchError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh, across, within
from autopar.runtime import torch_private


@dataclass(frozen=True, kw_only=True)
class Here:
    """This process on the axes of a program's mesh. ``groups`` holds the axes longer than 1."""

    device_mesh: DeviceMesh
    device: torch.device
    coordinate: dict[str, int]
    groups: dict[str, dist.ProcessGroup]
    _levels: dict[tuple[tuple[str, ...], tuple[int, ...]], DeviceMesh] = field(default_factory=dict)
    _halves: dict[tuple[str, int], dict[str, dist.ProcessGroup]] = field(default_factory=dict)

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

    def groups_of(self, graph: Graph) -> dict[str, dist.ProcessGroup]:
        """``groups``, and those of the parts of axes along which the graph exchanges rows in two steps.

        A collective, of those who run the graph, when it is first asked for: every rank asks in the same order.
        """
        found = dict(self.groups)
        for node in graph.nodes:
            inside = node.attr("inside")
            if isinstance(inside, int):
                found.update(self._parts(str(node.attr("exchange")), inside))
        return found

    def _parts(self, axis: str, inside: int) -> dict[str, dist.ProcessGroup]:
        """Of this process: ``inside`` neighbours along the axis, and those with its place among theirs."""
        if (axis, inside) not in self._halves:
            ranks, position = dist.get_process_group_ranks(self.groups[axis]), self.coordinate[axis]
            first = position - position % inside
            near, far = ranks[first : first + inside], ranks[position % inside :: inside]
            self._halves[axis, inside] = {
                name: dist.new_group(members, use_local_synchronization=True)
                for name, members in ((within(axis), near), (across(axis), far))
            }
        return self._halves[axis, inside]


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
