"""Which ranks of a mesh axis share a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.cost_model import Cluster, Group, NodeGroup, axis_groups, inside_nodes
from autopar.cost_model.topology import spread_by_counting
from autopar.ir.errors import UsageError
from autopar.ir.mesh import Mesh


def test_the_last_axis_is_neighbours_in_a_node_and_the_first_spans_nodes() -> None:
    assert axis_groups([("pp", 2), ("dp", 8), ("tp", 4)], Cluster.parse("8x8xH100-SXM")) == {
        "pp": Group(axis="pp", size=2, ranks_per_node=1, nodes=2),
        "dp": Group(axis="dp", size=8, ranks_per_node=2, nodes=4),
        "tp": Group(axis="tp", size=4, ranks_per_node=4, nodes=1),
    }


def test_an_axis_of_one_is_one_rank_on_one_node() -> None:
    groups = axis_groups([("dp", 16), ("tp", 1)], Cluster.parse("2x8xH100-SXM"))
    assert groups["tp"] == Group(axis="tp", size=1, ranks_per_node=1, nodes=1)


def test_a_group_that_straddles_nodes_unevenly_counts_its_most_crowded_node() -> None:
    groups = axis_groups([("dp", 8), ("tp", 3)], Cluster.parse("3x8xH100-SXM"))
    assert groups["tp"] == Group(axis="tp", size=3, ranks_per_node=2, nodes=2)


def test_nodes_of_different_sizes_are_walked_in_rank_order() -> None:
    nodes = (NodeGroup(count=1, gpus=4, device="CPU"), NodeGroup(count=2, gpus=2, device="CPU"))
    groups = axis_groups([("dp", 2), ("tp", 4)], Cluster(nodes=nodes))
    assert groups["tp"] == Group(axis="tp", size=4, ranks_per_node=2, nodes=2)


@given(
    nodes=st.integers(1, 6),
    gpus=st.integers(1, 8),
    data=st.data(),
)
def test_the_closed_form_agrees_with_counting(nodes: int, gpus: int, data: st.DataObject) -> None:
    world = nodes * gpus
    inner = data.draw(st.sampled_from([size for size in range(1, world + 1) if world % size == 0]))
    outer = world // inner
    middle = data.draw(st.sampled_from([size for size in range(1, outer + 1) if outer % size == 0]))
    cluster = Cluster.parse(f"{nodes}x{gpus}xCPU")
    groups = axis_groups([("a", outer // middle), ("b", middle), ("c", inner)], cluster)
    strides = {"a": middle * inner, "b": inner, "c": 1}
    for name, group in groups.items():
        counted = spread_by_counting(group.size, strides[name], cluster)
        assert (group.ranks_per_node, group.nodes) == counted


@given(nodes=st.integers(1, 6), gpus=st.integers(1, 8), data=st.data())
def test_neighbours_inside_a_node_really_share_it(nodes: int, gpus: int, data: st.DataObject) -> None:
    """Positions that follow one another in parts of that size: each part on one node, and no larger part is."""
    world = nodes * gpus
    inner = data.draw(st.sampled_from([size for size in range(1, world + 1) if world % size == 0]))
    mesh = Mesh((("a", world // inner), ("b", inner)))
    found = inside_nodes(mesh.axes, Cluster.parse(f"{nodes}x{gpus}xCPU"))
    for axis, near in found.items():
        for rank in range(world):
            group = mesh.group(rank, axis)
            parts = [{r // gpus for r in group[at : at + near]} for at in range(0, len(group), near)]
            assert len(group) % near == 0
            assert all(len(on) == 1 for on in parts)
            assert len(set().union(*parts)) == len(parts)
    if inner % gpus == 0 or gpus % inner == 0:
        assert set(found) == {"a", "b"}


def test_unequal_nodes_have_no_inside() -> None:
    nodes = (NodeGroup(count=1, gpus=4, device="CPU"), NodeGroup(count=2, gpus=2, device="CPU"))
    assert inside_nodes([("dp", 8)], Cluster(nodes=nodes)) == {}


def test_a_mesh_that_does_not_fill_the_cluster_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"mesh\(dp=2, tp=4\) has 8 members but 2x8xCPU has 16 devices"):
        axis_groups([("dp", 2), ("tp", 4)], Cluster.parse("2x8xCPU"))
