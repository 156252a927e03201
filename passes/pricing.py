"""Nanoseconds of one node's strategy and of one layout change, for one mesh on one cluster."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autopar.cost_model import (
    Cluster,
    CostProfile,
    Group,
    OpCost,
    collective_s,
    compute_s,
    crowded,
    inside_nodes,
    only_parameters_cross,
    overlap_fraction,
    slowest_compute_s,
)
from autopar.cost_model.dtypes import sent_back_bytes
from autopar.cost_model.priced import each_way_bytes, work
from autopar.ir.convert import COLLECTIVES, Change, local_numel
from autopar.ir.graph import Node
from autopar.ir.layout import Layout, Partial
from autopar.ir.losses import ROW_MAX
from autopar.ir.mesh import Mesh, across, within
from autopar.ir.optable import row
from autopar.ir.program import DATA_AXIS, MICROBATCH_AXIS
from autopar.ir.rules import NodeRule, Row, count_flops
from autopar.ir.types import DTYPE_BYTES, TensorType
from autopar.passes.candidate import Inside, reduces_gradients
from autopar.passes.facts import Fact
from autopar.passes.hybrid import cut_inside
from autopar.passes.problem import FORBIDDEN
from autopar.passes.strategies import Choice, NodeShapes, Strategy


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pricing:
    """Prices on ``mesh`` (with its microbatch axis).

    ``groups``: where each axis of all devices, outermost first, lies on the cluster.
    ``uneven``: data-parallel ranks take unequal shares, so nothing but the loss may cross them within a microbatch.
    Then an operation costs what it does on ``device`` or, None, on devices that each take what their speed allows.
    ``known_ns``: of operations, which all meshes of a cluster may share.
    """

    mesh: Mesh
    cluster: Cluster
    profile: CostProfile
    groups: Mapping[str, Group]
    uneven: bool = False
    device: str | None = None
    known_ns: dict[object, int] = field(default_factory=dict)

    @functools.cached_property
    def overlap(self) -> float:
        """Share of compute behind which communication can hide, on the worst device."""
        return min(overlap_fraction(device, self.profile) for device in self.cluster.devices)

    def crowded(self, axis: str) -> bool:
        """Whether operations send where parameters travel along the axis."""
        return crowded(self.groups.get(axis) or self._halves[axis], self.groups)

    @functools.cached_property
    def aside(self) -> bool:
        """Whether what operations send leaves the way of parameters free."""
        return not self.uneven and only_parameters_cross(self.groups)

    def collective_ns(self, kind: str, payload_bytes: int, axis: str) -> int:
        if axis == MICROBATCH_AXIS or kind not in COLLECTIVES:
            return 0
        key = kind, payload_bytes, axis
        found = self._known_collectives_ns.get(key)
        if found is None:
            group = self.groups.get(axis) or self._halves[axis]
            seconds = collective_s(kind, payload_bytes, group, self.cluster, self.profile)
            found = self._known_collectives_ns[key] = nanoseconds(seconds)
        return found

    def shared_ns(self, kind: str, payload_bytes: int, axis: str, among: int) -> int:
        """One parameter's share of a collective that it and others, ``among`` in all, go through at once."""
        return -(-self.collective_ns(kind, payload_bytes * among, axis) // among)

    @functools.cached_property
    def inside(self) -> Inside:
        """Neighbours on one node along each axis that may reduce gradients; () where that is everybody or nobody."""
        known = inside_nodes([(axis, group.size) for axis, group in self.groups.items()], self.cluster)
        axes = [axis for axis in self.mesh.names if axis in known and self.mesh.size(axis) > 1]
        found = tuple((axis, known[axis]) for axis in axes if reduces_gradients(axis))
        return found if cut_inside(found, [axis for axis, _ in found], self.mesh.size) else ()

    @functools.cached_property
    def _shared(self) -> dict[str, int]:
        """Of each axis that spans nodes with equally many neighbours on each: how many. One is none."""
        return {
            axis: each.ranks_per_node for axis, each in self.groups.items()
            if axis in self.mesh.names and 1 < each.ranks_per_node < each.size == each.ranks_per_node * each.nodes
        }  # fmt: skip

    @functools.cached_property
    def _halves(self) -> dict[str, Group]:
        """Groups along a part of an axis: of a node's neighbours, and of one from each node."""
        found = {}
        for axis, size in {**self._shared, **dict(self.inside)}.items():
            whole, near, far = self.mesh.size(axis), within(axis), across(axis)
            found[near] = Group(axis=axis, size=size, ranks_per_node=size, nodes=1)
            found[far] = Group(axis=axis, size=whole // size, ranks_per_node=1, nodes=whole // size)
        return found

    def change_ns(self, change: Change, fact: Fact) -> tuple[int, ...]:
        """Forward and backward nanoseconds of one layout change of a value.

        Where there is an ``aside``, also how long of each parameters go on travelling. What itself goes the way of
        parameters takes twice as long as alone, and lets as much of them pass.
        """
        kind = fact.type
        forward, backward, axis, have, need = change
        if self.uneven and axis == DATA_AXIS:  # numbers and gradients are added up once a step
            return (0, 0) if kind.numel == 1 or forward == "identity" else (FORBIDDEN, 0)
        before = local_numel(have, kind.shape) * DTYPE_BYTES[kind.dtype]
        after = local_numel(need, kind.shape) * sent_back_bytes(kind.dtype, backward, parameter=fact.parameter)
        ahead = self.collective_ns(forward, before, axis)
        behind = self.collective_ns(backward, after, axis)
        if not self.aside:
            return ahead, behind
        times = 2 if axis == DATA_AXIS else 1
        return times * ahead, times * behind, ahead, behind

    def op_costs(
        self,
        node: Node,
        rule: NodeRule,
        strategy: Strategy,
        shapes: NodeShapes,
        types: tuple[TensorType | None, ...],
    ) -> tuple[OpCost | None, OpCost | None]:
        """What one device does forward and backward; None where that is nothing. ``types``: operands, results."""
        entry = row(node)
        if entry.op_class == "view":
            return None, None
        if node.target == ROW_MAX and not any(isinstance(each, Partial) for each in strategy.results[0].placements):
            return None, None  # of whole classes it is found on the way to their sums
        flops = self._most(entry.flops, rule, strategy.choices)
        layouts = (*strategy.operands, *strategy.results)
        tensors = [
            (layout.local_shape(kind.shape), kind.dtype)
            for layout, kind in zip(layouts, types, strict=True)
            if layout is not None and kind is not None
        ]
        drawn = local_numel(strategy.results[0], shapes.results[0]) if entry.work_bytes else 0
        beside = self._most(entry.moved, rule, strategy.choices)
        wanted = [grad for grad, kind in zip(shapes.grads, types, strict=False) if kind and kind.has_gradient]
        return work(
            node.target, entry, flops, tensors, drawn, wanted, beside,
            joined=shapes.joined, by_elements=self._by_elements,
        )  # fmt: skip

    def exchange_ns(self, rule: NodeRule, entry: Row, choices: tuple[Choice, ...], dtype: str) -> int:
        """Nanoseconds of sending rows to the experts of other devices and back, of the device with most of them."""
        return 2 * self._exchange(rule, entry, choices, dtype)[0]

    def exchange_inside(self, rule: NodeRule, entry: Row, choices: tuple[Choice, ...], dtype: str) -> int:
        """Among how many neighbours on a node those rows go first, and then across nodes; 0: at once, if as fast."""
        return self._exchange(rule, entry, choices, dtype)[1]

    def _exchange(self, rule: NodeRule, entry: Row, choices: tuple[Choice, ...], dtype: str) -> tuple[int, int]:
        """Nanoseconds of sending rows one way, and among how many neighbours first, if that is faster."""
        for axis, choice in zip(self.mesh.names, choices, strict=True):
            if choice.into is not None:
                rows = self._most(entry.exchanged, rule, choices) * DTYPE_BYTES[dtype]
                sent = each_way_bytes(rows, self._most(entry.marks, rule, choices))
                flat_ns = self.collective_ns("all_to_all", sent, axis)
                if axis not in self._shared:
                    return flat_ns, 0
                steps_ns = sum(self.collective_ns("all_to_all", sent, half(axis)) for half in (within, across))
                return min((flat_ns, 0), (steps_ns, self._shared[axis]))
        return 0, 0

    def _most(self, columns: str, rule: NodeRule, choices: tuple[Choice, ...]) -> int:
        """``local_flops`` of the device with most of them: experts that are split get unequal numbers of rows."""
        mean = local_flops(columns, rule, choices, self.mesh)
        if rule.exchange is None or not any(rule.exchange[1] in (c.factor, c.into) for c in choices):
            return mean
        return round(mean * self.profile.experts_imbalance)

    def inner_bytes(self, rule: NodeRule, entry: Row, choices: tuple[Choice, ...], dtype: str) -> int:
        """What autograd keeps of an operation beside operands and results: its own, and what came in an exchange."""
        numbers, marks = self._most(entry.inner, rule, choices), 0
        if any(choice.into is not None for choice in choices):
            numbers += self._most(entry.exchanged, rule, choices)
            marks = self._most(entry.marks, rule, choices)
        return numbers * DTYPE_BYTES[entry.computes or dtype] + marks

    def op_ns(self, cost: OpCost | None) -> int:
        """Nanoseconds on the slowest device, or as ``uneven`` says; each cost is looked up once."""
        if cost is None:
            return 0
        asked: tuple[object, ...] = (
            cost.target, cost.op_class, cost.dtype, cost.flops, cost.bytes, cost.mixed_elements
        )  # fmt: skip
        if self.profile.has_compute_hook:  # which may look at all of it
            asked = (cost,)
        key = self.uneven, self.device, *asked
        found = self.known_ns.get(key)
        if found is None:
            found = self.known_ns[key] = self._op_ns(cost)
        return found

    def timed(self, cost: OpCost | None) -> tuple[int, int]:
        """``op_ns``, and how long an operation of one microbatch lets communication go on, on the device where that is
        longest."""
        takes_ns = self.op_ns(cost)
        if cost is None or not self.uneven or self.device is not None:
            return takes_ns, takes_ns
        return takes_ns, nanoseconds(slowest_compute_s(cost, self.cluster, self.profile))

    def _op_ns(self, cost: OpCost) -> int:
        if self.device is not None:
            return nanoseconds(compute_s(cost, self.device, self.profile))
        if self.uneven:
            return self._shared_ns(cost)
        return nanoseconds(slowest_compute_s(cost, self.cluster, self.profile))

    def _shared_ns(self, cost: OpCost) -> int:
        """Where each device takes of everybody's work what its speed allows: a harmonic mean (``paced.py``)."""
        nodes = self.cluster.nodes
        each = [(n.count * n.gpus, nanoseconds(compute_s(cost, n.device, self.profile))) for n in nodes]
        if any(one_ns == 0 for _, one_ns in each):
            return 0
        return math.floor(self.cluster.world_size / sum(devices / one_ns for devices, one_ns in each))

    @functools.cached_property
    def _by_elements(self) -> bool:
        """Whether anything is priced by them."""
        devices = map(self.profile.device, self.cluster.devices)
        return self.profile.has_compute_hook or any(device.mixed_giga_elements_s for device in devices)

    @functools.cached_property
    def _known_collectives_ns(self) -> dict[tuple[str, int, str], int]:
        return {}


def local_flops(columns: str, rule: NodeRule, choices: tuple[Choice, ...], mesh: Mesh) -> int:
    """FLOPs of one device: the table's factors, each divided by the axes that own it, with padding."""
    if not columns:
        return 0
    owners: dict[str | None, int] = {}
    for (_, ways), choice in zip(mesh.axes, choices, strict=True):
        owners[choice.factor] = owners.get(choice.factor, 1) * ways
    return count_flops(columns, {factor: -(-size // owners.get(factor, 1)) for factor, size in rule.sizes.items()})


def local_bytes(layout: Layout, kind: TensorType, dtype: str | None = None) -> int:
    return local_numel(layout, kind.shape) * DTYPE_BYTES[dtype or kind.dtype]
