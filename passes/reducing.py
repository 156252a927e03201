"""What heavy operations cost a mesh with data axes at least, in closed form.

Along an axis that splits data alone a call of a heavy operation has a choice of two. Either the axis splits its tokens:
then gradients of its parameters are reduced over the axis, each device's part of them, a share of the whole that all
other axes together leave at least. Or its devices do the same work, hold the same parameters with their gradients and
state, and as many calls may do so as there is memory for. A step takes as long as its traffic, hidden or not, and as
its computing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autopar.cost_model import optimizer_state_bytes
from autopar.ir.mesh import across, within
from autopar.ir.types import TensorType
from autopar.passes.build import Model
from autopar.passes.candidate import DATA_AXES
from autopar.passes.ground import Ground
from autopar.passes.heavy import Heavy, computed
from autopar.passes.positions import all_graphs, flat_operands, node_key
from autopar.passes.pricing import Pricing


@dataclass(frozen=True, kw_only=True)
class Load:
    """The heavy operations of one call of a graph on one device: ns of computing, bytes of each trained parameter, of
    these with gradients and state, and with how many others they travel."""

    calls: int
    computing_ns: int
    parameters: tuple[int, ...]
    held_bytes: int
    among: int


def loads(model: Model, ground: Ground, kept: Heavy) -> tuple[Load, ...]:
    """Those of all graphs that have any. ``ground``: of one device."""
    computing, calls = dict[str, int](), {model.graph.name: 1}
    for key, graph, node in computed(model):
        if key in kept.operations:
            partial = tuple(frozenset[str]() for _ in flat_operands(node))
            prices = ground.prices(graph, node, ground.strategies(key, partial))
            computing[graph.name] = computing.get(graph.name, 0) + int((prices[0] + prices[1]).min())
    for node in model.graph.nodes:
        if node.target == "call" and node.results[0].name in model.live:
            block = str(node.attr("block"))
            calls[block] = calls.get(block, 0) + int(str(node.attr("count")))
    found = []
    for graph in all_graphs(model.graph):
        whole, held = list[int](), 0
        for source in graph.sources("param"):
            stored = model.stored(graph, source) if node_key(graph, source) in kept.parameters else None
            if stored is not None and stored.trainable and not stored.buffer:
                size = TensorType(stored.dtype, stored.shape).nbytes
                state = optimizer_state_bytes(
                    model.settings.optimizer, stored.shape, stored.dtype, ground.pricing.profile
                )
                whole, held = [*whole, size], held + 2 * size + state
        if whole and graph.name in computing and graph.name in calls:
            found.append(Load(
                calls=calls[graph.name], computing_ns=computing[graph.name], parameters=tuple(whole), held_bytes=held,
                among=ground.trained(graph),
            ))  # fmt: skip
    return tuple(found)


def reducing_ns(known: tuple[Load, ...], pricing: Pricing, memory_bytes: int) -> int:
    """Least time of all work on the devices of ``pricing.mesh``. ``memory_bytes``: what each has for all calls."""
    mesh = pricing.mesh
    sizes = {axis: size for axis, size in mesh.axes if axis in DATA_AXES and size > 1}
    world = math.prod(size for _, size in mesh.axes)
    return max((_along(axis, size, known, pricing, memory_bytes, world) for axis, size in sizes.items()), default=0)


def _along(
    axis: str, size: int, known: tuple[Load, ...], pricing: Pricing, memory_bytes: int, world: int
) -> int:
    """With as many calls doing the same work along the axis as pays and fits, parts of calls too."""
    inside = dict(pricing.inside)
    total, gains = 0.0, []
    left = float(memory_bytes - sum(load.calls * load.held_bytes // world for load in known))
    for load in known:
        split = sum(_reduced(axis, whole * size // world, load.among, pricing, inside) for whole in load.parameters)
        same = size * load.computing_ns // world
        total += load.calls * split
        if same < split:
            more = load.calls * load.held_bytes * (size - 1) / world
            gains.append(((split - same) * load.calls / more, more))
    for gain, more in sorted(gains, reverse=True):
        taken = min(more, max(left, 0.0))
        total, left = total - gain * taken, left - taken
    return max(0, int(total * (1 - 1e-9)))


def _reduced(axis: str, part: int, among: int, pricing: Pricing, inside: Mapping[str, int]) -> int:
    """Least time for a gradient's reduction over the axis, ``part`` bytes on each device before: at any ZeRO level."""
    ways = [pricing.shared_ns(kind, part, axis, among) for kind in ("all_reduce", "reduce_scatter")]
    near = inside.get(axis, 0)
    if 0 < near < pricing.mesh.size(axis):
        far = pricing.shared_ns("all_reduce", part // near, across(axis), among)
        ways.append(far + (pricing.shared_ns("reduce_scatter", part, within(axis), among) if near > 1 else 0))
    return min(ways)
