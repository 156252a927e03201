"""The mesh drawn on the machines: a box a device with its position on every axis; of many, a box a node."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.cost_model import Cluster
from autopar.ir.mesh import Mesh
from autopar.ir.plan import Plan
from autopar.report.axes import Axis, axes_of
from autopar.report.svg import Svg, element, picture

# More devices than this are drawn node by node, more nodes than this are counted.
MOST_DEVICES = 128
MOST_NODES = 96
ACROSS = 4
WIDTH, STRIPE, GAP = 44, 17, 6
MOST_SHADES = 8


@dataclass(frozen=True, kw_only=True)
class Node:
    label: str
    drawing: Svg


@dataclass(frozen=True, kw_only=True)
class Machines:
    """``apart``: a box is a device, not a node. ``hidden``: nodes that are not drawn."""

    caption: str
    axes: tuple[Axis, ...]
    nodes: tuple[Node, ...]
    apart: bool
    hidden: int


def machines(plan: Plan) -> Machines:
    """Ranks go node by node, the last axis varies fastest."""
    cluster = Cluster.from_dict(plan.cluster)
    axes = axes_of(plan, cluster)
    mesh = Mesh(tuple((axis.name, axis.size) for axis in axes))
    apart = cluster.world_size <= MOST_DEVICES
    nodes, first = [], 0
    for number, count in enumerate(cluster.node_sizes()[:MOST_NODES]):
        ranks = range(first, first + count)
        label = f"node {number}"
        drawing = _devices(axes, mesh, ranks, label) if apart else _whole(axes, mesh, ranks, label)
        nodes.append(Node(label=label, drawing=drawing))
        first += count
    kinds = " + ".join(
        f"{group.count} node{'s' * (group.count > 1)} of {group.gpus} {group.device}" for group in cluster.nodes
    )
    return Machines(
        caption=kinds, axes=axes, nodes=tuple(nodes), apart=apart, hidden=max(0, cluster.num_nodes - MOST_NODES)
    )


def _devices(axes: tuple[Axis, ...], mesh: Mesh, ranks: range, label: str) -> Svg:
    """Each device of a node with a stripe for each axis."""
    shown = axes or ()
    height = max(len(shown), 1) * STRIPE
    across = min(len(ranks), ACROSS)
    boxes = []
    for index, rank in enumerate(ranks):
        at = mesh.coordinate(rank)
        stripes = [
            part for row, axis in enumerate(shown)
            for part in (
                element(
                    "rect", class_=f"a{axis.slot}", y=row * STRIPE, width=WIDTH, height=STRIPE,
                    fill_opacity=_shade(at[axis.name], axis.size),
                ),
                element("text", str(at[axis.name]), x=WIDTH / 2, y=row * STRIPE + 12.5),
            )
        ]  # fmt: skip
        where = ", ".join(f"{name} {position}" for name, position in at.items())
        x, y = (index % across) * (WIDTH + GAP), (index // across) * (height + GAP)
        frame = element("rect", class_="frame", width=WIDTH, height=height, rx=2)
        title = element("title", f"device {rank}: {where}" if where else f"device {rank}")
        boxes.append(element("g", title, *stripes, frame, transform=f"translate({x + 1} {y + 1})"))
    rows = -(-len(ranks) // across)
    return _node(f"{label}: devices {ranks[0]} to {ranks[-1]}", boxes, across * (WIDTH + GAP), rows * (height + GAP))


def _whole(axes: tuple[Axis, ...], mesh: Mesh, ranks: range, label: str) -> Svg:
    """A node as one box: for each axis the positions that its devices have."""
    wide = 2 * WIDTH
    parts: list[Svg] = []
    for row, axis in enumerate(axes):
        found = sorted({mesh.coordinate(rank)[axis.name] for rank in ranks})
        shades = found[:: -(-len(found) // MOST_SHADES)]
        for index, position in enumerate(shades):
            parts.append(element(
                "rect", class_=f"a{axis.slot}", x=index * wide / len(shades), y=row * STRIPE,
                width=wide / len(shades), height=STRIPE, fill_opacity=_shade(position, axis.size),
            ))  # fmt: skip
        text = str(found[0]) if len(found) == 1 else f"{found[0]} – {found[-1]}"
        parts.append(element("text", text, x=wide / 2, y=row * STRIPE + 12.5))
    height = max(len(axes), 1) * STRIPE
    title = element("title", f"{label}: devices {ranks[0]} to {ranks[-1]}")
    frame = element("rect", class_="frame", width=wide, height=height, rx=2)
    box = element("g", title, *parts, frame, transform="translate(1 1)")
    return _node(f"{label}: devices {ranks[0]} to {ranks[-1]}", [box], wide + GAP, height + GAP)


def _node(label: str, boxes: list[Svg], width: int, height: int) -> Svg:
    return picture(label, *boxes, class_="node", viewBox=f"0 0 {width - GAP + 2} {height - GAP + 2}")


def _shade(position: int, size: int) -> float:
    """From faint to strong along the axis; a text on it stays legible."""
    return 0.14 + 0.5 * (position / (size - 1) if size > 1 else 0.0)
