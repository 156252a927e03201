"""The axes of a mesh: their colours, what they are for, and how far their groups reach."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cli.tables import size
from autopar.cost_model import Cluster, axis_groups
from autopar.ir.plan import Plan

# An axis has one colour in all reports; those of other names take what is left, in the order of the mesh.
SLOTS = {"pp": 0, "dp": 1, "tp": 2, "cp": 3, "ep": 4}
OTHERS = 4
ROLES = {
    "pp": "pipeline places: each has some of the layers",
    "dp": "the batch; parameters may be kept in parts",
    "tp": "parameters and hidden sizes, never the batch",
    "cp": "the sequence",
    "ep": "experts",
}
FREE = "whatever is fastest for each tensor"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """``slot``: number of its colour. ``reach``: where the devices of one of its groups stand."""

    name: str
    size: int
    slot: int
    role: str
    reach: str
    traffic: str


def axes_of(plan: Plan, cluster: Cluster) -> tuple[Axis, ...]:
    """Outermost first."""
    sizes = [(name, plan.mesh[name]) for name in plan.axes]
    groups, slots = axis_groups(sizes, cluster), slots_of(plan)
    found = []
    for name, length in sizes:
        group = groups[name]
        if length == 1:
            reach = "one device"
        elif group.nodes == 1:
            reach = "inside a node"
        elif group.ranks_per_node == 1:
            reach = f"across {group.nodes} nodes, one device on each"
        else:
            reach = f"across {group.nodes} nodes, {group.ranks_per_node} devices on each"
        moved = sum(each.bytes * each.count for each in plan.collectives if each.axis.partition(".")[0] == name)
        found.append(Axis(
            name=name, size=length, slot=slots[name], role=ROLES.get(name, FREE), reach=reach, traffic=size(moved),
        ))  # fmt: skip
    return tuple(found)


def slots_of(plan: Plan) -> dict[str, int]:
    """The number of each axis's colour."""
    others = [name for name in plan.axes if name not in SLOTS]
    return {**SLOTS, **{name: len(SLOTS) + index % OTHERS for index, name in enumerate(others)}}


def mesh_text(sizes: list[tuple[str, int]]) -> str:
    """``pp 2 × dp 8``; a line never ends within an axis."""
    return " × ".join(f"{name}\u00a0{length}" for name, length in sizes) or "one device"
