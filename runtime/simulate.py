"""Run a whole program on a simulated mesh: loss, outputs and the gradient of every parameter.

No process group: every node runs once for each rank, microbatches included. Besides serving tests, it
answers what a plan computes before any device has been asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from autopar.ir.calls import carried
from autopar.ir.errors import IRError
from autopar.ir.graph import ASSIGN, Graph, Node, Value, assigned, sorted_attrs
from autopar.ir.layout import Layout, Replicate, Shard
from autopar.ir.mesh import Mesh
from autopar.ir.program import MICROBATCH_AXIS, RNG_INPUT, Parameter, Program
from autopar.runtime.dtypes import TORCH_DTYPES
from autopar.runtime.moves import of_node
from autopar.runtime.ops import resolve
from autopar.runtime.random_words import at_microbatch, rng_state
from autopar.runtime.simulated_mesh import Values, run_step, run_steps, shard, unshard

EXCHANGED = (0, 1, 2, 6)  # operands of experts that are of tokens

__all__ = ["Simulated", "run_steps", "shard", "simulate", "unshard"]

# Sees every comm node before it runs: returns it, changed or not, or None to leave it out.
Mutation: TypeAlias = Callable[[Node], "Node | None"]


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Whole tensors. ``outputs`` in the order of ``graph.outputs``; ``gradients`` by parameter name.

    ``buffers``: new values of those that the forward changes.
    """

    loss: Tensor | None
    outputs: tuple[Tensor, ...]
    gradients: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


def simulate(
    program: Program,
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Tensor],
    *,
    mutation: Mutation | None = None,
    seed: int = 0,
    step: int = 0,
) -> Simulated:
    """Forward and, if the program has a loss, backward of one step on the *global* inputs.

    Requires: ``inputs`` by input name, ``params`` by fqn (buffers and constants too), all whole.
    Random numbers are those of ``seed`` and ``step``.
    Raises VerificationError where devices that should hold the same do not.
    """
    mesh = program.graph.mesh or program.mesh
    layouts = {parameter.fqn: _on(mesh, parameter.layout) for parameter in program.parameters}
    leaves = {p.fqn: _leaves(params[p.fqn], layouts[p.fqn], p) for p in program.parameters}
    runner = _Runner(mesh, leaves, dict(params), mutation)
    known = {**inputs, RNG_INPUT: rng_state(seed, step)}
    if program.prologue is not None:
        before = _Runner(program.prologue.mesh or program.mesh, {}, dict(params), mutation)
        with torch.no_grad():
            found = before.main(program.prologue, known)
        known.update(zip(program.prologue.outputs, found, strict=True))
    outputs, values = runner.main_values(program.graph, known)
    loss = None
    if program.loss is not None:
        held = values[program.loss]
        _seed(held, program.graph.values()[program.loss].layout)
        loss = _whole(held, program.graph.values()[program.loss])
    gradients = {
        p.fqn: unshard([_gradient(x) for x in leaves[p.fqn]], layouts[p.fqn], p.type.shape)
        for p in program.parameters
        if p.trainable and not p.buffer and loss is not None
    }
    buffers = {fqn: unshard(held, Layout.replicated(mesh)) for fqn, held in runner.written.items()}
    return Simulated(loss=loss, outputs=outputs, gradients=gradients, buffers=buffers)


class _Runner:
    """Runs graphs node by node, each node on every rank of ``mesh``."""

    def __init__(
        self, mesh: Mesh, leaves: Mapping[str, Values], whole: Mapping[str, Tensor], mutation: Mutation | None
    ) -> None:
        self.mesh = mesh
        self.positions = list(mesh.coordinates())
        self.leaves = leaves
        self.whole = whole
        self.mutation = mutation
        self.written: dict[str, Values] = {}

    def main(self, graph: Graph, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return self.main_values(graph, inputs)[0]

    def main_values(
        self, graph: Graph, inputs: Mapping[str, Tensor]
    ) -> tuple[tuple[Tensor, ...], dict[str, Values]]:
        """Whole outputs, and the values of all ranks by name."""
        entries: dict[str, Values] = {}
        for node in graph.nodes:
            if node.target == "input":
                name = str(node.attr("name"))
                held = shard(inputs[name], _layout(node))
                entries[node.result.name] = self.in_time(held) if name == RNG_INPUT else held
        values = self.run(graph, graph, entries, None)
        types = graph.values()
        return tuple(_whole(values[name], types[name]) for name in graph.outputs), values

    def in_time(self, states: Values) -> Values:
        """The state of the random numbers as each rank's microbatch has it."""
        places = [position.get(MICROBATCH_AXIS, 0) for position in self.positions]
        return [at_microbatch(rng, place) for rng, place in zip(states, places, strict=True)]

    def run(
        self, top: Graph, graph: Graph, entries: Mapping[str, Values], slots: tuple[str, ...] | None
    ) -> dict[str, Values]:
        """All values of ``graph``; ``entries`` holds its inputs, ``slots`` the names of its parameters."""
        values: dict[str, Values] = dict(entries)
        for node in graph.nodes:
            if node.target == "input":
                continue
            if node.target in ("param", "buffer", "constant"):
                values[node.result.name] = self.stored(node, slots)
            elif node.target == "call":
                values.update(self.call(top, node, values))
            elif node.target.startswith("comm."):
                kept = node if self.mutation is None else self.mutation(node)
                held = values[next(node.uses())]
                values[node.result.name] = held if kept is None else run_step(held, self.mesh, of_node(kept))
            else:
                values.update(self.operation(node, values))
            if node.target == ASSIGN:
                stored = graph.producers()
                for buffer, new in assigned(node):
                    self.written[_stored_name(stored[buffer], slots)] = values[new]
        return values

    def stored(self, node: Node, slots: tuple[str, ...] | None) -> Values:
        name = _stored_name(node, slots)
        if name not in self.leaves:
            return shard(self.whole[name], _layout(node))
        dtype = TORCH_DTYPES[node.result.type.dtype]
        return [x if x.dtype == dtype else x.to(dtype) for x in self.leaves[name]]

    def call(self, top: Graph, node: Node, values: Mapping[str, Values]) -> dict[str, Values]:
        block = top.block(str(node.attr("block")))
        names = [value.name for entry in block.sources("input") for value in entry.results]
        params, handed = node.attr("params"), carried(node)
        if not isinstance(params, tuple):
            raise IRError(f"call of @{block.name} lacks 'params'")
        operands, own = [values[name] for name in node.uses()], list[Values]()
        for slots in params:
            assert isinstance(slots, tuple)
            held = self.run(top, block, dict(zip(names, operands, strict=True)), tuple(map(str, slots)))
            results = [held[name] for name in block.outputs]
            operands[:handed] = results[:handed]
            own += results[handed:]
        return {value.name: result for value, result in zip(node.results, (*operands[:handed], *own), strict=False)}

    def operation(self, node: Node, values: Mapping[str, Values]) -> dict[str, Values]:
        if node.attr("exchange") is not None:
            return {node.result.name: self.exchanged(node, values)}
        by_rank: list[tuple[Any, ...]] = []
        for rank, position in enumerate(self.positions):
            function = resolve(node, position, torch.device("cpu"))
            by_rank.append(function(*(_pick(operand, values, rank) for operand in node.operands)))
        return {value.name: [results[at] for results in by_rank] for at, value in enumerate(node.results)}


    def exchanged(self, node: Node, values: Mapping[str, Values]) -> Values:
        """Experts whose tokens come from all ranks along an axis: each rank's experts on all those tokens, added up."""
        axis, start = str(node.attr("exchange")), node.attr("start")
        assert isinstance(start, tuple)
        kept = {k: v for k, v in node.attrs if k not in ("exchange", "stride")}
        own = replace(node, attrs=sorted_attrs({**kept, "start": (*start, (axis, node.attr("stride")))}))
        found: list[Tensor | None] = [None] * len(self.positions)
        for first, position in enumerate(self.positions):
            if position[axis] == 0:
                members = self.mesh.group(first, axis)
                held = [[_pick(operand, values, rank) for operand in node.operands] for rank in members]
                given = [list(parts) for parts in zip(*held, strict=True)]
                for at in EXCHANGED:
                    if at < len(given) and given[at][0] is not None:
                        given[at] = [torch.cat(given[at])] * len(members)
                parts = [
                    resolve(own, self.positions[rank], torch.device("cpu"))(*mine)[0]
                    for rank, mine in zip(members, zip(*given, strict=True), strict=True)
                ]
                total = torch.stack(parts).sum(0)
                for rank, piece in zip(members, total.split([len(mine[0]) for mine in held]), strict=True):
                    found[rank] = piece
        return [piece for piece in found if piece is not None]


def _stored_name(node: Node, slots: tuple[str, ...] | None) -> str:
    slot = node.attr("slot")
    return slots[slot] if slots is not None and isinstance(slot, int) else str(node.attr("fqn"))


def _pick(operand: Any, values: Mapping[str, Values], rank: int) -> Any:
    if isinstance(operand, tuple):
        return tuple(_pick(name, values, rank) for name in operand)
    return None if operand is None else values[operand][rank]


def _on(mesh: Mesh, layout: Layout) -> Layout:
    """The layout with the axes that only ``mesh`` has (microbatches) replicated."""
    return Layout.of(mesh, dict(zip(layout.mesh.names, layout.placements, strict=True)))


def _layout(node: Node) -> Layout:
    layout = node.result.layout
    if layout is None:
        raise IRError(f"{node.result.name} = {node.target} has no layout: not a lowered graph")
    return layout


def _leaves(tensor: Tensor, layout: Layout, parameter: Parameter) -> Values:
    if any(not isinstance(placement, (Shard, Replicate)) for placement in layout.placements):
        raise IRError(f"{parameter.fqn} is stored as {layout}: a parameter is S or R on every axis")
    trains = parameter.trainable and not parameter.buffer and tensor.is_floating_point()
    return [x.detach().clone().requires_grad_(trains) for x in shard(tensor, layout)]


def _seed(loss: Values, layout: Layout | None) -> None:
    """Backward from one loss a rank: a whole gradient of 1 on each."""
    if layout is not None and any(isinstance(p, Shard) for p in layout.placements):
        raise IRError(f"the loss is laid out {layout}: it must be one value")
    if any(x.requires_grad for x in loss):
        torch.autograd.backward(loss, [torch.ones_like(x) for x in loss])


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _whole(values: Values, of: Value) -> Tensor:
    if of.layout is None:
        raise IRError("an output has no layout: not a lowered graph")
    return unshard([x.detach() for x in values], of.layout, of.type.shape)
