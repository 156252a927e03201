"""Put a program together on this process: modules of its graphs, holders, and the skeleton of names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autopar.ir.errors import IRError
from autopar.ir.graph import Graph, Node
from autopar.ir.program import RNG_INPUT, Parameter, Program
from autopar.ir.recompute import once
from autopar.runtime.calls import Instance, chain, in_slot_order, slots_of
from autopar.runtime.compiled import Compile, compiled
from autopar.runtime.devices import Here
from autopar.runtime.dtypes import TORCH_DTYPES
from autopar.runtime.holders import Holder, make_holder
from autopar.runtime.inputs import graph_inputs
from autopar.runtime.parameters import Names, Part, Stored, register
from autopar.runtime.program import build, stored_nodes, written
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
class Parts:
    """What a program is made of here. ``training`` returns the loss alone, ``forward`` every output.

    ``tensors``: parameters and buffers by name, as they are outside of a forward. ``holders`` by group; ``owners``:
    group and block of the parameters that one call alone uses; ``buffers`` by name.
    """

    tensors: Mapping[str, Tensor]
    top: Holder
    training: Runnable
    forward: Runnable
    before: Callable[[Mapping[str, Tensor], Tensor], dict[str, Tensor]]
    sums: StepSums
    holders: Mapping[str, Holder]
    owners: Mapping[str, tuple[str, str]]
    buffers: Mapping[str, Tensor]


def assemble(program: Program, here: Here, given: Stored, *, compile: Compile) -> Parts:
    """Requires: every rank calls it, in the same order. Each parameter is whole for a moment only."""
    described = {parameter.fqn: parameter for parameter in program.parameters}
    buffers = {fqn: given.tensor(p) for fqn, p in described.items() if p.buffer}
    for graph in (program.graph, *([program.prologue] if program.prologue else [])):
        for node in graph.sources("constant"):
            name = str(node.attr("fqn"))
            if name not in buffers and name not in described:
                assert node.result.layout is not None
                buffers[name] = given.constant(name, node.result.layout)
    owners = owners_of(program)
    by_group: dict[str, list[Parameter]] = {"": []}
    for parameter in program.parameters:
        if not parameter.buffer:
            by_group.setdefault(owners.get(parameter.fqn, ("", ""))[0], []).append(parameter)
    holders: dict[str, Holder] = {}
    for group, members in by_group.items():
        if group:
            held = [(p, _parameter(p, given)) for p in members]
            zero = program.zero.get(owners[members[0].fqn][1], 0)
            holders[group] = make_holder(held, here, zero=zero)
    runtime_axes = [tuple(a for a in p.runtime_axes if a in here.groups) for p in program.parameters]
    most = Counter(axes for axes in runtime_axes if axes).most_common(1)
    top = make_holder(
        [(p, _parameter(p, given)) for p in by_group[""]],
        here,
        zero=program.zero.get("", 0),
        reshard=False,
        children=tuple(holders.values()),
        root_axes=most[0][0] if most else (),
    )

    updates, changing = Updates(buffers), changed(program)

    def read(fqn: str) -> Tensor:
        if fqn in buffers:
            held = buffer(buffers[fqn], described.get(fqn))
            return held.clone() if fqn in changing else held  # backward may need what it was
        owner = top.find(fqn)
        if owner is None:
            raise IRError(f"{fqn} belongs to a block, and is used outside of it")
        return owner.read(fqn)

    modules = {}
    for block in program.graph.blocks:
        again = once(block) if program.recompute.get(block.name) == "selective" and not compile else None
        # a compiler orders collectives itself; what is read from a tape is not waited for
        modules[block.name] = build(
            block, here.coordinate, here.groups, here.device, once=again, overlap=not compile and again is None
        )
    run = {name: compiled(module.forward, compile) for name, module in modules.items()}
    made: dict[int, Callable[..., tuple[Tensor, ...]]] = {}

    def call_of(node: Node) -> Callable[..., tuple[Tensor, ...]]:
        if id(node) not in made:
            made[id(node)] = _call(program, node, run, owners, holders, read, updates)
        return made[id(node)]

    forward = build(program.graph, here.coordinate, here.groups, here.device, calls=call_of, overlap=True)
    ahead = Runnable(program.graph, forward, top, read, updates)
    training = ahead
    if program.loss is not None and program.graph.outputs != (program.loss,):
        loss_only = needed(program.graph, (program.loss,))
        module = build(loss_only, here.coordinate, here.groups, here.device, calls=call_of, overlap=True)
        training = Runnable(loss_only, module, top, read, updates)
    tensors = _tensors(program, top, holders, buffers)
    sums = StepSums(program.parameters, tensors, here)
    for holder in top.modules():
        if isinstance(holder, Holder):
            holder.sums = sums
    return Parts(
        tensors=tensors,
        top=top,
        training=training,
        forward=ahead,
        before=prologue(program, here, read),
        sums=sums,
        holders=holders,
        owners=owners,
        buffers=buffers,
    )


def owners_of(program: Program) -> dict[str, tuple[str, str]]:
    """(group, block) of the parameters that one call of a block alone uses; all others are the root's."""
    users: dict[str, list[tuple[str, str]]] = {}
    for node in program.graph.nodes:
        if node.target == "param":
            users.setdefault(str(node.attr("fqn")), []).append(("", ""))
        elif node.target == "call":
            for index, names in enumerate(slots_of(node)):
                for name in dict.fromkeys(names):
                    user = (f"{node.results[0].name}/{index}", str(node.attr("block")))
                    users.setdefault(name, []).append(user)
    buffers = {parameter.fqn for parameter in program.parameters if parameter.buffer}
    return {fqn: by[0] for fqn, by in users.items() if len(by) == 1 and by[0][0] and fqn not in buffers}


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
    wanted, kept = set(outputs), []
    for node in reversed(graph.nodes):
        if node.target == "input" or any(value.name in wanted for value in node.results):
            kept.append(node)
            wanted.update(node.uses())
    return replace(graph, nodes=tuple(reversed(kept)), outputs=outputs)


def _call(
    program: Program,
    node: Node,
    run: Mapping[str, Callable[..., Any]],
    owners: Mapping[str, tuple[str, str]],
    holders: Mapping[str, Holder],
    read: Callable[[str], Tensor],
    updates: Updates,
) -> Callable[..., tuple[Tensor, ...]]:
    block = program.graph.block(str(node.attr("block")))
    instances = []
    for slots in slots_of(node):
        names = in_slot_order(block, slots)
        groups = {owners[name][0] for name in names if name in owners}
        holder = holders[groups.pop()] if groups else None
        changing = written_names(block, slots)
        recompute = program.recompute.get(block.name)
        instances.append(Instance(run[block.name], names, holder, read, recompute, changing, updates))
    carried = node.attr("carried", 0)
    assert isinstance(carried, int)
    return chain(instances, carried)


def prologue(
    program: Program, here: Here, read: Callable[[str], Tensor]
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
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part if described is None else part.to(TORCH_DTYPES[described.compute_dtype])


def _tensors(
    program: Program, top: Holder, holders: Mapping[str, Holder], buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read after ``fully_shard``, which replaced the parameters of the holders."""
    held = top.all_held()
    for holder in holders.values():
        held.update(holder.all_held())
    return {p.fqn: buffers[p.fqn] if p.buffer else held[p.fqn] for p in program.parameters}


def skeleton(tensors: Mapping[str, Tensor], names: Names) -> nn.Module:
    """Modules that hold the tensors under their original names and order, second names of tied ones too."""
    tensors = {**tensors, **{alias: tensors[name] for alias, name in names.aliases.items() if name in tensors}}
    made = Part()
    for name in dict.fromkeys((*(name for name in names.order if name in tensors), *tensors)):
        register(made, name, tensors[name], persistent=name not in names.not_saved)
    return made


def _parameter(parameter: Parameter, given: Stored) -> nn.Parameter:
    tensor = given.tensor(parameter)
    assert isinstance(tensor, nn.Parameter)
    return tensor
