"""Prices that the meshes of a cluster share are told apart by all that they depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cost_model import Cluster, CostProfile, NodeGroup, OpCost, axis_groups, load_profile
from autopar.ir.mesh import Mesh
from autopar.passes.pricing import Pricing

SLOW, FAST = "V100-SXM2-32GB", "H100-SXM"
LINEAR = OpCost(target="aten.linear.default", op_class="matmul", dtype="f16", flops=10**12, bytes=10**6)


class ByDevice(CostProfile):
    """Knows what no key but the whole operation tells."""

    def compute_s(self, op: OpCost, device: str) -> float | None:
        return (1.0 if device == FAST else 3.0) + len(op.shapes)


@pytest.mark.parametrize("profile", [load_profile(None), ByDevice()], ids=["figures", "functions"])
def test_devices_that_share_a_table_have_prices_of_their_own(profile: CostProfile) -> None:
    mesh = Mesh((("dp", 2),))
    cluster = Cluster(nodes=tuple(NodeGroup(count=1, gpus=1, device=device) for device in (SLOW, FAST)))
    slowest = Pricing(mesh=mesh, cluster=cluster, profile=profile, groups=axis_groups(mesh.axes, cluster))
    fast, slow, shared = (replace(slowest, device=FAST), replace(slowest, device=SLOW), replace(slowest, uneven=True))
    assert fast.known_ns is slow.known_ns is shared.known_ns is slowest.known_ns
    found = [each.op_ns(LINEAR) for each in (fast, slow, shared, slowest)]
    assert found == [each.op_ns(LINEAR) for each in (fast, slow, shared, slowest)]
    assert found[0] < found[2] < found[1] == found[3]
    other = replace(LINEAR, shapes=((1, 1),))
    assert (fast.op_ns(other) > found[0]) == isinstance(profile, ByDevice)
