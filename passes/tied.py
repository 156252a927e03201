"""Parameters that several places of a pipeline have: their gradients are added up between these, once a step.

Nobody is done before, so a step takes as long as its slowest place and then this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.cost_model import collective_s
from autopar.cost_model.priced import Group
from autopar.ir.pipeline import PIPELINE_AXIS, Stage
from autopar.ir.program import Program
from autopar.ir.types import TensorType
from autopar.passes.account import zero_by_parameter
from autopar.passes.build import Model
from autopar.passes.hybrid import parts_of
from autopar.passes.pipelining import Shape
from autopar.passes.pricing import Pricing, local_bytes, nanoseconds
from autopar.passes.stages import belongs, dependence


@dataclass(frozen=True, kw_only=True)
class Tied:
    """A trained parameter that stands at several places, which add up its gradients at the end of a step."""

    bytes: int
    places: tuple[int, ...]

    def time_ns(self, pricing: Pricing) -> int:
        """Nobody is done before it: as if all of its places were on different nodes, if the axis has several."""
        size, nodes = len(self.places), pricing.groups[PIPELINE_AXIS].nodes
        near = size if nodes == 1 else 1
        group = Group(axis=PIPELINE_AXIS, size=size, ranks_per_node=near, nodes=size // near)
        return nanoseconds(collective_s("all_reduce", self.bytes, group, pricing.cluster, pricing.profile))


def tied(program: Program, stages: Sequence[Stage], shape: Shape) -> tuple[Tied, ...]:
    """Of a program cut into these stages; ``bytes`` as the runtime cuts them."""
    zero = zero_by_parameter(program)
    at: dict[str, set[int]] = {}
    parts: dict[str, int] = {}
    for index, stage in enumerate(stages):
        for parameter in stage.program.parameters:
            if parameter.trainable and not parameter.buffer:
                level, _ = zero.get(parameter.fqn, (program.zero.get("", 0), ""))
                ways = parts_of(parameter, program.mesh.size) if level else 1
                parts[parameter.fqn] = -(-local_bytes(parameter.layout, parameter.type) // ways)
                at.setdefault(parameter.fqn, set()).add(index % shape.places)
    return tuple(
        Tied(bytes=parts[fqn], places=tuple(sorted(places))) for fqn, places in at.items() if len(places) > 1
    )


def least_ns(model: Model, pricing: Pricing, devices: int) -> int:
    """Of every cut whose stages begin at calls of blocks: what is used before the first call and behind the last one
    stands at the first place and at the last. ``devices``: of a place, which may each have a part."""
    graph = model.graph
    calls = [at for at, node in enumerate(graph.nodes) if node.target == "call"]
    depends = dependence(graph.nodes)
    held = {node.result.name: {node.result.name} for node in graph.sources("param")}
    before, behind = set[str](), set[str]()
    for at, node in enumerate(graph.nodes):
        used = {name for operand in node.uses() for name in held.get(operand, ())}
        if not belongs(node, depends):
            held.update((value.name, used) for value in node.results if used)
        elif node.results[0].name in model.live:
            before.update(used if at < calls[0] else ())
            behind.update(used if at > calls[-1] else ())
    total = 0
    for node in graph.sources("param"):
        stored = model.stored(graph, node)
        if node.result.name in before & behind and stored.trainable and not stored.buffer:
            part = TensorType(stored.dtype, stored.shape).nbytes // devices
            total += Tied(bytes=part, places=(0, 1)).time_ns(pricing)
    return total
