"""Which ranks of a mesh axis share a node.

The mesh is laid row-major over the ranks: the last axis varies fastest, so its members are neighbours.
Ranks go node by node. Members of one group of an axis are therefore ``stride`` apart, where the stride is
the product of the sizes of the axes after it.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Iterable, Mapping

from autopar.cost_model.cluster import Cluster
from autopar.cost_model.priced import Group
from autopar.ir.errors import UsageError
from autopar.ir.pipeline import PIPELINE_AXIS


def axis_groups(axes: Iterable[tuple[str, int]], cluster: Cluster) -> dict[str, Group]:
    """The group of each mesh axis: how many of its members share a node, and how many nodes it spans.

    Groups of one axis that lie differently over the nodes are stood for by the worst of them: most nodes,
    then fewest members on a node. Raises ``UsageError`` if the mesh does not have as many members as the
    cluster.
    """
    mesh = tuple(axes)
    members = math.prod(size for _, size in mesh)
    if members != cluster.world_size or any(size < 1 for _, size in mesh):
        shape = ", ".join(f"{name}={size}" for name, size in mesh)
        raise UsageError(
            f"mesh({shape}) has {members} members but {cluster} has {cluster.world_size} devices; "
            f"choose sizes whose product is {cluster.world_size}"
        )
    groups: dict[str, Group] = {}
    stride = members
    for name, size in mesh:
        stride //= size
        ranks_per_node, nodes = _spread(size, stride, cluster)
        groups[name] = Group(axis=name, size=size, ranks_per_node=ranks_per_node, nodes=nodes)
    return groups


def only_parameters_cross(groups: Mapping[str, Group]) -> bool:
    """Whether data parallelism crosses nodes and tensor parallelism does not, and nothing else but a pipeline is there.

    Then neither slows the other down: what goes on within nodes lets parameters travel between them.
    """
    wide = {axis: group.nodes > 1 for axis, group in groups.items() if group.size > 1 and axis != PIPELINE_AXIS}
    return wide in ({"dp": True}, {"dp": True, "tp": False})


def crowded(group: Group, groups: Mapping[str, Group]) -> bool:
    """Whether operations that split parameters send where this group's traffic goes: within nodes, or between them."""
    apart = ("dp", "cp", PIPELINE_AXIS)
    others = (other for axis, other in groups.items() if axis not in apart and other.size > 1)
    return any((other.nodes > 1) == (group.nodes > 1) for other in others)


def neighbours(group: Group) -> Group:
    """Two that follow each other along an axis: the worst such pair."""
    return Group(axis=group.axis, size=2, ranks_per_node=2 if group.nodes == 1 else 1, nodes=min(2, group.nodes))


def inside_nodes(axes: Iterable[tuple[str, int]], cluster: Cluster) -> dict[str, int]:
    """For each mesh axis, how many neighbours along it share a node: positions 0 … m-1, m … 2m-1 and so on.

    Empty where some axis does not lie so: nodes differ, or a group of neighbours would stand on two of them.
    """
    mesh = tuple(axes)
    members = math.prod(size for _, size in mesh)
    if members != cluster.world_size or not cluster.has_equal_nodes:
        return {}
    found: dict[str, int] = {}
    stride = members
    for name, size in mesh:
        stride //= size
        even = _even_spread(size, stride, cluster.gpus_per_node)
        if even is None:
            return {}
        found[name] = even[0]
    return found


def _spread(size: int, stride: int, cluster: Cluster) -> tuple[int, int]:
    """Members per node and nodes, of ``size`` members ``stride`` apart."""
    even = _even_spread(size, stride, cluster.gpus_per_node) if cluster.has_equal_nodes else None
    return spread_by_counting(size, stride, cluster) if even is None else even


def _even_spread(size: int, stride: int, gpus: int) -> tuple[int, int] | None:
    """Of every group alike: members per node, which are neighbours, and nodes."""
    span = size * stride
    if gpus % span == 0:
        return size, 1
    if stride % gpus == 0:
        return 1, size
    if gpus % stride == 0 and span % gpus == 0:
        return gpus // stride, span // gpus
    return None


@functools.lru_cache(maxsize=4096)
def spread_by_counting(size: int, stride: int, cluster: Cluster) -> tuple[int, int]:
    """The same by looking at every group: right for every cluster, and slow for a large one."""
    sizes = cluster.node_sizes()
    node_of_rank = [node for node, count in enumerate(sizes) for _ in itertools.repeat(None, count)]
    worst = (size, 1)
    for first in range(0, len(node_of_rank), size * stride):
        for offset in range(first, first + stride):
            on_node = collections.Counter(node_of_rank[offset : offset + size * stride : stride])
            spread = (max(on_node.values()), len(on_node))
            if (spread[1], -spread[0]) > (worst[1], -worst[0]):
                worst = spread
    return worst
