"""Put a program together on this process: tensors, holders, what runs on them, and the skeleton of names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from autopar.ir.errors import IRError
from autopar.ir.program import Parameter, Program
from autopar.runtime.calls import slots_of
from autopar.runtime.compiled import Compile
from autopar.runtime.devices import Here
from autopar.runtime.holders import Holder, make_holder
from autopar.runtime.leaves import Leaves
from autopar.runtime.parameters import Names, Part, Stored, register
from autopar.runtime.runnable import Held, Parts, connect
from autopar.runtime.step_sums import StepSums


def assemble(program: Program, here: Here, given: Stored, *, compile: Compile, staged: bool = False) -> Parts:
    """Requires: every rank calls it, in the same order. Each parameter is whole for a moment only.

    ``staged``: the program is a stage of a pipeline.
    """
    buffers = _buffers(program, given)
    owners = owners_of(program)
    top, holders = _holders(program, here, given, owners, staged=staged)
    tensors = _tensors(program, top, holders, buffers)
    sums, leaves = StepSums(program.parameters, tensors, here), Leaves()
    for holder in top.modules():
        if isinstance(holder, Holder):
            holder.sums = sums
            holder.local = holder.local if isinstance(holder, FSDPModule) else leaves.part

    def parameter(fqn: str) -> Tensor:
        owner = top.find(fqn)
        if owner is None:
            raise IRError(f"{fqn} belongs to a block, and is used outside of it")
        return owner.read(fqn)

    held = Held(tensors=tensors, top=top, sums=sums, leaves=leaves, holders=holders, owners=owners, buffers=buffers)
    return connect(program, here, held, parameter, compile=compile, overlap=True)


def _buffers(program: Program, given: Stored) -> dict[str, Tensor]:
    """Buffers and constants."""
    described = {parameter.fqn: parameter for parameter in program.parameters}
    found = {fqn: given.tensor(p) for fqn, p in described.items() if p.buffer}
    for graph in (program.graph, *([program.prologue] if program.prologue else [])):
        for node in graph.sources("constant"):
            name = str(node.attr("fqn"))
            if name not in found and name not in described:
                assert node.result.layout is not None
                found[name] = given.constant(name, node.result.layout)
    return found


def _holders(
    program: Program, here: Here, given: Stored, owners: Mapping[str, tuple[str, str]], *, staged: bool
) -> tuple[Holder, dict[str, Holder]]:
    """The root's holder, and those of the calls by group."""
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
        staged=staged,
    )
    return top, holders


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


def _tensors(
    program: Program, top: Holder, holders: Mapping[str, Holder], buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read after ``fully_shard``, which replaced the parameters of the holders."""
    held = top.all_held()
    for holder in holders.values():
        held.update(holder.all_held())
    return {p.fqn: buffers[p.fqn] if p.buffer else held[p.fqn] for p in program.parameters}


def skeleton(tensors: Mapping[str, Tensor], names: Names) -> nn.Module:
    """Modules that hold the tensors under their original names and order, second names of tied ones too.

    What the model has no name for, such as a tensor that its forward makes, is no part of its state.
    """
    tensors = {**tensors, **{alias: tensors[name] for alias, name in names.aliases.items() if name in tensors}}
    made = Part()
    for name in dict.fromkeys((*(name for name in names.order if name in tensors), *tensors)):
        register(made, name, tensors[name], persistent=names.saves(name))
    return made


def _parameter(parameter: Parameter, given: Stored) -> nn.Parameter:
    tensor = given.tensor(parameter)
    assert isinstance(tensor, nn.Parameter)
    return tensor
