"""Run a program on the tensors of this process: its blocks as modules, its calls, its main graph behind a holder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from autopar.ir.calls import carried
from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node
from autopar.ir.live import live_nodes
from autopar.ir.program import RNG_INPUT, Parameter, Program
from autopar.ir.recompute import once
from autopar.runtime.calls import Instance, Read, chain, in_slot_order, slots_of
from autopar.runtime.compiled import Compile, compiled
from autopar.runtime.devices import Here
from autopar.runtime.dtypes import TORCH_DTYPES
from autopar.runtime.holders import Holder
from autopar.runtime.inputs import graph_inputs
from autopar.runtime.leaves import Leaves
from autopar.runtime.program import Call, build, stored_nodes, written
from autopar.runtime.reading import part_of
from autopar.runtime.step_sums import StepSums
from autopar.runtime.updates import Updates


class Runnable:
    """A main graph behind the root holder: a list of inputs in, the tuple of outputs out."""

    def __init__(
        self,
        graph: Graph,
        module: Callable[..., Any],
        top: Holder,
        read: Callable[[str], Tensor],
        updates: Updates,
    ) -> None:
        self.graph = graph
        self.module = module
        self.top = top
        self.read = read
        self.updates = updates
        self.names = [str(node.attr("fqn")) for node in stored_nodes(graph)]
        self.written = [str(node.attr("fqn")) for node in written(graph)]
        self.inputs = [entry.name for entry in graph_inputs(graph)]
        self.rng = torch.empty(0, dtype=torch.int64)

    def __call__(self, given: Mapping[str, Tensor], rng: Tensor) -> tuple[Tensor, ...]:
        """``rng`` stays on the CPU, where reading it stops no queue: FSDP2 would move an input to the device."""
        self.top.function, self.rng = self.run, rng
        self.updates.begin()
        results: tuple[Tensor, ...] = self.top(*(given[name] for name in self.inputs if name != RNG_INPUT))
        self.updates.finish()
        return results

    def run(self, *inputs: Tensor) -> Any:
        given = iter(inputs)
        values = [self.rng if name == RNG_INPUT else next(given) for name in self.inputs]
        results = self.module(*values, *(self.read(name) for name in self.names))
        return self.updates.take(results, self.written)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a program computes with here.

    ``tensors``: parameters and buffers by name, as they are outside of a forward. ``holders`` by group; ``owners``:
    group and block of the parameters that one call alone uses; ``buffers`` and constants by name.
    """

    tensors: Mapping[str, Tensor]
    top: Holder
    sums: StepSums
    leaves: Leaves
    holders: Mapping[str, Holder]
    owners: Mapping[str, tuple[str, str]]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Parts(Held):
    """That, and the program on it. ``training`` returns the loss alone, ``forward`` every output."""

    training: Runnable
    forward: Runnable
    before: Callable[[Mapping[str, Tensor], Tensor], dict[str, Tensor]]


def connect(
    program: Program, here: Here, held: Held, parameter: Read, *, compile: Compile = False, overlap: bool = False
) -> Parts:
    """The program on what is held. ``parameter`` reads one that no call of a block owns, within a forward.

    ``overlap``: collectives are waited for where their results are needed (``overlap.py``).
    """
    if compile:  # no tape goes through a compiler (``compiled.warn_of_recomputation``)
        program = replace(program, recompute=dict.fromkeys(program.recompute, "full"))
    described = {p.fqn: p for p in program.parameters}
    updates, changing = Updates(held.buffers), changed(program)

    def read(fqn: str) -> Tensor:
        if fqn not in held.buffers:
            return parameter(fqn)
        found = buffer(held.buffers[fqn], described.get(fqn))
        return found.clone() if fqn in changing else found  # backward may need what it was

    blocks = {block.name: _block(program, block, here, compile, overlap) for block in program.graph.blocks}
    calls: dict[int, Call] = {}

    def call_of(node: Node) -> Call:
        if id(node) not in calls:
            calls[id(node)] = _call(program, node, blocks, held, read, updates)
        return calls[id(node)]

    def runnable(graph: Graph) -> Runnable:
        module = build(graph, here.coordinate, here.named, here.device, calls=call_of, overlap=overlap)
        return Runnable(graph, module, held.top, read, updates)

    forward = runnable(program.graph)
    loss_alone = program.loss is None or program.graph.outputs == (program.loss,)
    training = forward if loss_alone else runnable(needed(program.graph, (str(program.loss),)))
    return Parts(
        tensors=held.tensors, top=held.top, sums=held.sums, leaves=held.leaves, holders=held.holders,
        owners=held.owners, buffers=held.buffers, training=training, forward=forward,
        before=_prologue(program, here, read),
    )  # fmt: skip


def _block(program: Program, block: Graph, here: Here, compile: Compile, overlap: bool) -> Callable[..., Any]:
    """One function for all instances of a block."""
    tape = once(block) if program.recompute.get(block.name) == "selective" else None
    # a compiler orders collectives itself; what is read from a tape is not waited for
    overlap = overlap and not compile and tape is None
    module = build(block, here.coordinate, here.named, here.device, once=tape, overlap=overlap)
    return compiled(module.forward, compile)


def _call(
    program: Program, node: Node, blocks: Mapping[str, Callable[..., Any]], held: Held, read: Read, updates: Updates
) -> Call:
    block = program.graph.block(str(node.attr("block")))
    instances = []
    for slots in slots_of(node):
        names = in_slot_order(block, slots)
        groups = [held.owners[name][0] for name in names if name in held.owners]
        holder = held.holders[groups[0]] if groups else None
        changing = written_names(block, slots)
        recompute = program.recompute.get(block.name)
        instances.append(Instance(blocks[block.name], names, holder, read, recompute, changing, updates))
    return chain(instances, carried(node), collects=len(node.results) > carried(node))


def _prologue(
    program: Program, here: Here, read: Read
) -> Callable[[Mapping[str, Tensor], Tensor], dict[str, Tensor]]:
    graph = program.prologue
    if graph is None:
        return lambda given, rng: {}
    names = [entry.name for entry in graph_inputs(graph)]
    if parameters := graph.sources("param"):
        raise IRError(f"the prologue uses {parameters[0].attr('fqn')}: only buffers are at hand there")
    stored = [str(node.attr("fqn")) for node in stored_nodes(graph)]
    module = build(graph, here.coordinate, here.groups, here.device)
    outputs = graph.outputs

    def before(given: Mapping[str, Tensor], rng: Tensor) -> dict[str, Tensor]:
        known = {**given, RNG_INPUT: rng}
        with torch.no_grad():
            results = module(*(known[name] for name in names), *(read(name) for name in stored))
        return dict(zip(outputs, results, strict=True))

    return before


def buffer(tensor: Tensor, described: Parameter | None) -> Tensor:
    """A buffer or constant as the program computes with it; read anew each time, for it may be loaded."""
    part = part_of(tensor)
    return part if described is None else part.to(TORCH_DTYPES[described.compute_dtype])


def written_names(block: Graph, slots: Sequence[str]) -> list[str]:
    """The buffers that one call of a block changes."""
    found = []
    for node in written(block):
        slot = node.attr("slot")
        assert isinstance(slot, int)
        found.append(slots[slot])
    return found


def changed(program: Program) -> frozenset[str]:
    """Every buffer that the program changes."""
    names = {str(node.attr("fqn")) for node in written(program.graph)}
    for node in program.graph.nodes:
        if node.target == "call":
            block = program.graph.block(str(node.attr("block")))
            names.update(name for slots in slots_of(node) for name in written_names(block, slots))
    return frozenset(names)


def needed(graph: Graph, outputs: tuple[str, ...]) -> Graph:
    """The graph without the nodes that ``outputs`` do not need. Inputs stay."""
    return replace(graph, nodes=live_nodes(graph.nodes, outputs), outputs=outputs)
