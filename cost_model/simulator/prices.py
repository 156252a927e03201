"""What one operation and one communication of a lowered program take, each distinct one priced once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from autopar.cost_model.cluster import Cluster
from autopar.cost_model.collectives import collective_s
from autopar.cost_model.compute import overlap_fraction, slowest_compute_s
from autopar.cost_model.priced import Group, OpCost, work
from autopar.cost_model.profile import CostProfile
from autopar.cost_model.topology import axis_groups, only_parameters_cross
from autopar.ir.graph import Node, Value
from autopar.ir.losses import FORMS, opened
from autopar.ir.mesh import Mesh
from autopar.ir.optable import local_row, node_rule
from autopar.ir.pipeline import PIPELINE_AXIS
from autopar.ir.rules import count_flops
from autopar.ir.types import DTYPE_BYTES, TensorType

_WHOLE = {form.whole: form for form in FORMS}


class Prices:
    """On ``mesh``, that of all processes. Raises UsageError if the cluster has another number of devices."""

    def __init__(self, mesh: Mesh, cluster: Cluster, profile: CostProfile) -> None:
        self.mesh, self.cluster, self.profile = mesh, cluster, profile
        self.groups = axis_groups(mesh.axes, cluster)
        # share of computing behind which communication can hide, on the worst device
        self.overlap = min(overlap_fraction(device, profile) for device in cluster.devices)
        self.aside = only_parameters_cross(self.groups)
        self.imbalance = profile.experts_imbalance
        self._compute: dict[OpCost, int] = {}
        self._moves: dict[tuple[str, int, Group], int] = {}

    def compute_ns(self, cost: OpCost) -> int:
        """On the slowest device."""
        if cost not in self._compute:
            self._compute[cost] = round(slowest_compute_s(cost, self.cluster, self.profile) * 1e9)
        return self._compute[cost]

    def move_ns(self, kind: str, payload_bytes: int, group: Group) -> int:
        key = (kind, payload_bytes, group)
        if key not in self._moves:
            self._moves[key] = round(collective_s(kind, payload_bytes, group, self.cluster, self.profile) * 1e9)
        return self._moves[key]

    def parts(self, axis: str, inside: int) -> tuple[Group, Group]:
        """An axis cut into groups of ``inside`` neighbours on one node: such a group, and one of one from each."""
        size = self.groups[axis].size
        return (
            Group(axis=axis, size=inside, ranks_per_node=inside, nodes=1),
            Group(axis=axis, size=size // inside, ranks_per_node=1, nodes=size // inside),
        )

    def pair(self, place: int, other: int) -> Group:
        """A device of one place of the pipeline and its partner at another."""
        ranks = self.mesh.group(0, PIPELINE_AXIS)
        ends = list(itertools.accumulate(self.cluster.node_sizes()))
        node, far = (next(at for at, end in enumerate(ends) if ranks[each] < end) for each in (place, other))
        return _pair(1 if node == far else 2)

    def worst_pair(self) -> Group:
        """The pair of neighbours in the pipeline that are furthest apart."""
        return _pair(min(2, self.groups[PIPELINE_AXIS].nodes))


def _pair(nodes: int) -> Group:
    return Group(axis=PIPELINE_AXIS, size=2, ranks_per_node=3 - nodes, nodes=nodes)


def link(group: Group) -> str:
    """What the group's traffic shares with other traffic of its devices."""
    return "within nodes" if group.nodes == 1 else "between nodes"


def local_shape(value: Value) -> tuple[int, ...]:
    """What one device holds of a value of a lowered program."""
    return value.type.shape if value.layout is None else value.layout.local_shape(value.type.shape)


def local_bytes(value: Value) -> int:
    return math.prod(local_shape(value)) * DTYPE_BYTES[value.type.dtype]


Costs: TypeAlias = "Iterator[tuple[OpCost | None, OpCost | None]]"


def op_costs(
    node: Node, operands: Sequence[Value | None], wanted: Sequence[bool], imbalance: float, *, joined: bool = False
) -> Costs:
    """What one device does at a node of a lowered program, forward and backward, step by step.

    ``operands``: flattened; ``wanted``: which of them get a gradient; ``imbalance``: of experts that are split;
    ``joined``: a bias. A loss of whole classes costs what its sums over them do, and what is made of these.
    """
    if node.target not in _WHOLE or any(wanted[2:]):
        yield from _costs(node, operands, wanted, imbalance, joined)
        return
    types = {
        value.name: TensorType(value.type.dtype, local_shape(value)) for value in (*operands, *node.results) if value
    }
    here = tuple(Value(value.name, types[value.name]) for value in node.results)
    top, *parts = opened(replace(node, results=here), _WHOLE[node.target], types)
    types.update({value.name: value.type for part in (top, *parts) for value in part.results})
    for part in parts:
        given = [Value(name, types[name]) for name in part.uses()]
        yield from _costs(part, given, [any(wanted)] * len(given), imbalance, False)


def _costs(
    node: Node, operands: Sequence[Value | None], wanted: Sequence[bool], imbalance: float, joined: bool
) -> Costs:
    entry = local_row(node)
    if entry.op_class == "view":
        return
    made = [local_shape(value) for value in node.results]
    sizes = _sizes(node, operands) if entry.flops else {}
    tensors = [
        (local_shape(value), value.type.dtype) for value in (*operands, *node.results) if value is not None
    ]
    flops, beside = count_flops(entry.flops, sizes), count_flops(entry.moved, sizes)
    if node.attr("among") is not None:
        flops, beside = round(flops * imbalance), round(beside * imbalance)
    learns = [grad for grad, value in zip(wanted, operands, strict=True) if value and value.type.has_gradient]
    yield work(node.target, entry, flops, tensors, math.prod(made[0]), learns, beside, joined=joined)


def exchanged_bytes(node: Node, values: Mapping[str, Value], imbalance: float) -> tuple[int, int]:
    """What one device sends, and gets back, within experts that are split over an axis on which tokens are too; and
    what it sends with that, once."""
    sizes, entry = _sizes(node, [None if name is None else values[name] for name in node.flat]), local_row(node)
    rows, marks = (round(count_flops(columns, sizes) * imbalance) for columns in (entry.exchanged, entry.marks))
    return rows * DTYPE_BYTES[node.results[0].type.dtype], marks


def _sizes(node: Node, operands: Sequence[Value | None]) -> Mapping[str, int]:
    """Of the factors of a lowered operation's rule, on one device."""
    given = [None if value is None else local_shape(value) for value in operands]
    made = [local_shape(value) for value in node.results]
    return node_rule(node, given, made, given=local_row(node)).sizes
