"""What a chosen plan costs, item by item: collectives, compute, memory, islands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autopar.cost_model import OpCost, efficiency_sources, optimizer_state_bytes
from autopar.cost_model.simulator.holders import levels, stored_bytes
from autopar.cost_model.simulator.prices import exchanged_bytes
from autopar.ir.graph import SOURCES, Graph, Node
from autopar.ir.layout import Layout
from autopar.ir.mesh import across, within
from autopar.ir.optable import ISLAND, row
from autopar.ir.plan import Collective, Island
from autopar.ir.program import DATA_AXIS, MICROBATCH_AXIS, Program
from autopar.ir.types import DTYPE_BYTES, TensorType
from autopar.passes.assignment import Assignment, Variant
from autopar.passes.build import Model
from autopar.passes.candidate import Settings, cost_level
from autopar.passes.early import Placed, Timing
from autopar.passes.early_costs import early
from autopar.passes.hybrid import parts_of
from autopar.passes.positions import flat_operands, node_key
from autopar.passes.pricing import Pricing, local_bytes, local_flops
from autopar.passes.recompute import again
from autopar.passes.storage import added_ns, reductions, update_ns
from autopar.passes.strategies import Strategy
from autopar.passes.uneven import exchanged_once


@dataclass(frozen=True, kw_only=True)
class Work:
    """One node's work on one device: forward and backward, and how often each runs in a step."""

    node: Node
    forward: OpCost | None
    backward: OpCost | None
    forward_count: int
    backward_count: int
    flops: int


def placed(model: Model, assignment: Assignment) -> Iterator[tuple[Graph, Variant, int]]:
    """Every graph with its variant and the number of calls."""
    yield model.graph, assignment.main, 1
    for node in model.graph.nodes:
        if node.target == "call":
            block = model.graph.block(str(node.attr("block")))
            for repeat, variant in assignment.calls[node.results[0].name]:
                yield block, variant, repeat


def work(model: Model, assignment: Assignment, pricing: Pricing, microbatches: int) -> Iterator[Work]:
    """What training runs, node by node; of what runs before the first microbatch, once for the whole batch."""
    time = _timing(model, assignment) if MICROBATCH_AXIS in assignment.mesh.names else None
    # by node and strategy, most of which calls have in common; the assignment keeps them, so nothing else has their ids
    known: dict[object, tuple[OpCost | None, OpCost | None, int]] = {}
    for graph, variant, count in placed(model, assignment):
        for node in graph.nodes:
            name = node.results[0].name
            if node.target in (*SOURCES, "call") or (graph is model.graph and name not in model.live):
                continue
            if time is not None and graph is model.graph and name in time.early:
                yield _once(model, node, early(variant.nodes[name]), pricing)
            if time is not None and graph is model.graph and name not in time.late:
                continue
            key, chosen = node_key(graph, node), variant.nodes[name]
            if (key, id(chosen)) not in known:
                types = model.types(graph, node)
                costs = pricing.op_costs(node, model.rules[key], chosen, model.shapes[key], types)
                known[key, id(chosen)] = *costs, _flops(node, model, key, chosen, types, pricing)
            forward, backward, flops = known[key, id(chosen)]
            times = count * microbatches
            yield Work(
                node=node, forward=forward, backward=backward,
                forward_count=times * again(variant.mode, node), backward_count=times, flops=times * flops,
            )


def _timing(model: Model, assignment: Assignment) -> Timing:
    main, needs = assignment.main, {}
    for node in model.graph.nodes:
        if node.target == "call":
            name = node.results[0].name
            _, first = assignment.calls[name][0]
            needs[name] = [first.inputs[entry.result.name] for entry in model.graph.block(first.graph).sources("input")]
    found = Placed(graph=model.graph, chosen=main.nodes, given={**main.inputs, **main.storage}, pure=model.pure)
    return found.timing(needs, {model.loss: Layout.replicated(assignment.mesh)})


def _once(model: Model, node: Node, chosen: Strategy, pricing: Pricing) -> Work:
    """An operation of the whole batch."""
    key, pricing = node_key(model.graph, node), replace(pricing, mesh=chosen.results[0].mesh)
    types = model.types(model.graph, node)
    forward, _ = pricing.op_costs(node, model.rules[key], chosen, model.shapes[key], types)
    flops = _flops(node, model, key, chosen, types, pricing)
    return Work(node=node, forward=forward, backward=None, forward_count=1, backward_count=1, flops=flops)


def _flops(
    node: Node, model: Model, key: tuple[str, str], chosen: Strategy, types: tuple[TensorType | None, ...],
    pricing: Pricing,
) -> int:  # fmt: skip
    """One device's share of an operation. Of an island one for each element that it reads or writes is taken."""
    if row(node) is ISLAND:
        return sum(kind.numel for kind in types if kind is not None)
    return local_flops(row(node).flops, model.rules[key], chosen.choices, pricing.mesh)


def compute_ns(items: list[Work], pricing: Pricing) -> int:
    """Compute time of a step on one device."""
    return sum(
        item.forward_count * pricing.op_ns(item.forward) + item.backward_count * pricing.op_ns(item.backward)
        for item in items
    )


def updates_ns(program: Program, settings: Settings, pricing: Pricing, microbatches: int) -> int:
    """What one device computes beside the model's operations: gradients added up, the optimizer's step."""
    total, zero_of = 0, levels(program)
    for parameter in program.parameters:
        if parameter.buffer or not parameter.trainable:
            continue
        dtype, local = parameter.type.dtype, parameter.layout.local_shape(parameter.type.shape)
        state = optimizer_state_bytes(settings.optimizer, local, dtype, pricing.profile)
        zero = cost_level(zero_of[parameter.fqn], settings) if parameter.runtime_axes else 0
        parts = math.prod(parameter.inside or map(program.mesh.size, parameter.runtime_axes)) if zero else 1
        whole = stored_bytes(parameter)
        used = whole // DTYPE_BYTES[dtype] * DTYPE_BYTES[parameter.compute_dtype]
        over = parts if zero >= 2 and settings.schedule is None else 1
        total += (microbatches - 1) * added_ns(whole, used, over, dtype, pricing)
        total += update_ns(whole, state, parts, dtype, pricing)
    return total


def priced(items: list[Work], pricing: Pricing) -> dict[str, tuple[str, ...]]:
    """How the seconds of each class of operations were found, on the cluster's first device."""
    costs = [cost for item in items for cost in (item.forward, item.backward) if cost is not None]
    found = efficiency_sources(costs, pricing.cluster.devices[0], pricing.profile)
    return {name: tuple(ways) for name, ways in found.items()}


def islands(items: list[Work]) -> tuple[Island, ...]:
    """Operations without a rule: every device does all of their work (see ``Island``)."""
    counts: dict[str, int] = {}
    flops: dict[str, int] = {}
    for item in items:
        if row(item.node) is ISLAND:
            target = item.node.target
            counts[target] = counts.get(target, 0) + item.backward_count
            flops[target] = flops.get(target, 0) + item.flops
    total = sum(item.flops for item in items)
    return tuple(Island(op=op, count=counts[op], flops_share=flops[op] / max(total, 1)) for op in sorted(counts))


def collectives(program: Program, *, piped: bool = False) -> tuple[Collective, ...]:
    """Every collective of a step, equal ones added up, in order of first appearance. ``piped``: of a stage."""
    found: dict[tuple[str, str, int, str, str], int] = {}
    for graph, calls, where in _graphs(program):
        again = 2 if program.recompute.get(where) == "full" else 1
        for node in graph.nodes:
            if node.target.startswith("comm."):
                _count(found, program, graph, node, calls * program.microbatches, again, where)
            elif node.attr("exchange") is not None:
                _count_exchange(found, graph, node, calls * program.microbatches, again, where)
    for kind, size in exchanged_once(program) if program.shares else ():
        key = (kind, DATA_AXIS, size, "main", "forward")
        found[key] = found.get(key, 0) + 1
    _parameters(found, program, piped=piped)
    return tuple(
        Collective(kind=kind, axis=axis, bytes=size, count=count, where=where, phase=phase)  # type: ignore[arg-type]
        for (kind, axis, size, where, phase), count in found.items()
    )


def _graphs(program: Program) -> Iterator[tuple[Graph, int, str]]:
    yield program.graph, 1, "main"
    for block in program.graph.blocks:
        calls = [n for n in program.graph.nodes if n.target == "call" and n.attr("block") == block.name]
        yield block, sum(int(str(call.attr("count"))) for call in calls), block.name


def _count(
    found: dict[tuple[str, str, int, str, str], int], program: Program, graph: Graph, node: Node,
    times: int, again: int, where: str,
) -> None:  # fmt: skip
    kind, back, axis = node.target.removeprefix("comm."), str(node.attr("backward")), str(node.attr("axis"))
    if node.attr("owner") in ("runtime", "step") or axis not in program.mesh.names:
        return
    values = graph.values()
    operand = values[str(node.operands[0])]
    for what, value, phase, count in (
        (kind, operand, "forward", times * again), (back, node.result, "backward", times)
    ):  # fmt: skip
        if what in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
            assert value.layout is not None
            size = local_bytes(value.layout, value.type)
            key = (what, axis, size, where, phase)
            found[key] = found.get(key, 0) + count


def _count_exchange(
    found: dict[tuple[str, str, int, str, str], int], graph: Graph, node: Node, times: int, again: int, where: str
) -> None:
    """Rows of tokens sent to the experts of other devices and back, forward and backward; of a device with the mean."""
    (rows, marks), axis = exchanged_bytes(node, graph.values(), imbalance=1.0), str(node.attr("exchange"))
    parts = (axis,) if node.attr("inside") is None else (within(axis), across(axis))
    sent = [(rows, "forward", 2 * times * again), (rows, "backward", 2 * times)]
    for size, phase, count in [*sent, (marks, "forward", times * again)] if marks else sent:
        for part in parts:
            key = ("all_to_all", part, size, where, phase)
            found[key] = found.get(key, 0) + count


def _parameters(found: dict[tuple[str, str, int, str, str], int], program: Program, *, piped: bool) -> None:
    """What the runtime does: gradients reduced, sharded parameters gathered."""
    zero = zero_by_parameter(program)
    at_the_end: dict[tuple[tuple[str, ...], str], int] = {}
    for parameter in program.parameters:
        level, where = zero.get(parameter.fqn, (program.zero.get("", 0), "main"))
        size = local_bytes(parameter.layout, parameter.type)
        used = size // DTYPE_BYTES[parameter.type.dtype] * DTYPE_BYTES[parameter.compute_dtype]
        for kind, axis, amount, phase, count in reductions(
            parameter.runtime_axes, used, size, program.mesh.size, level, program.microbatches,
            root=where == "main", inside=parameter.inside, piped=piped,
        ):
            key = (kind, axis, amount, where, phase)
            found[key] = found.get(key, 0) + count
        parts = parts_of(parameter, program.mesh.size) if level else 1
        together = (parameter.step_axes, parameter.type.dtype)
        at_the_end[together] = at_the_end.get(together, 0) + -(-size // parts)
    for (axes, _), size in at_the_end.items():  # one buffer for all of them
        for axis in axes:
            key = ("all_reduce", axis, size, "main", "grad")
            found[key] = found.get(key, 0) + 1


def zero_by_parameter(program: Program) -> dict[str, tuple[int, str]]:
    """ZeRO level and block of the parameters that belong to calls."""
    found: dict[str, tuple[int, str]] = {}
    for node in program.graph.nodes:
        params = node.attr("params") if node.target == "call" else None
        if isinstance(params, tuple):
            block = str(node.attr("block"))
            for names in params:
                assert isinstance(names, tuple)
                found.update({str(name): (program.zero.get(block, 0), block) for name in names})
    return found


def used_layout(variant: Variant, graph: Graph, name: str) -> Layout | None:
    """The layout in which the first consumer of a parameter node needs it; None if nothing does."""
    for node in graph.nodes:
        chosen = variant.nodes.get(node.results[0].name)
        if chosen is not None and name in flat_operands(node):
            return chosen.operands[flat_operands(node).index(name)]
    return None
