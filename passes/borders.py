"""In which layouts values may leave a block, and in which they may be needed in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autopar.ir.errors import IRError
from autopar.ir.graph import SOURCES, Graph
from autopar.ir.layout import Layout, Partial, R, Shard
from autopar.passes.positions import flat_operands

if TYPE_CHECKING:
    from autopar.passes.build import Builder

ADD = "aten.add.Tensor"

# What is smaller costs as good as nothing to be added up once.
SMALL_BYTES = 4096


def handed_on(
    builder: Builder, block: Graph, entering: Sequence[Sequence[Layout]]
) -> dict[str, tuple[Layout, ...]]:
    """By carried input the layouts in which it may go from call to call: all in which it comes to the first, and out
    of any.

    A small sum to which every call only adds goes on in as many parts as what is added may be made in: to become a part
    is free, and to add the parts up takes one message behind the last call. Else its layouts would make as many states
    more of all else that is carried.
    """
    inputs, outputs = block.sources("input")[: len(entering)], block.outputs[: len(entering)]
    found = {}
    ends = zip(inputs, outputs, entering, out_layouts(builder, block, outputs), strict=True)
    for source, output, come, leave in ends:
        name = source.result.name
        added = _added(block, name, output) if source.result.type.nbytes < SMALL_BYTES else ()
        made = [layout for layouts in out_layouts(builder, block, added) for layout in layouts]
        found[name] = (added and _in_parts(leave, made)) or tuple(dict.fromkeys((*come, *leave)))
    return found


def _added(block: Graph, name: str, output: str) -> tuple[str, ...]:
    """What a call adds, one after the other, to a carried input of which it does nothing else and which it hands on
    so."""
    users, producers, added = block.consumers(), block.producers(), list[str]()
    while name != output:
        others = [operand for node in users[name] for operand in flat_operands(node) if operand != name]
        if [node.target for node in users[name]] != [ADD] or users[name][0].attrs or len(others) != 1:
            return ()
        added += (other for other in others if other is not None)
        name = users[name][0].result.name
    own = not users[name] and block.outputs.count(name) == 1
    return tuple(added) if own and all(producers[each].target not in SOURCES for each in added) else ()


def _in_parts(layouts: Sequence[Layout], made: Sequence[Layout]) -> tuple[Layout, ...]:
    """The layouts that are in parts on every axis on which one of those ``made`` is."""
    axes = {axis for each in made for axis in each.mesh.names if isinstance(each[axis], Partial)}
    split = {axis for each in made for axis in each.mesh.names if isinstance(each[axis], Shard)} - axes
    return tuple(
        each for each in layouts
        if all(isinstance(each[axis], Partial) if axis in axes else axis in split or each[axis] == R
               for axis in each.mesh.names)
    )  # fmt: skip


def out_layouts(builder: Builder, block: Graph, names: Sequence[str]) -> list[tuple[Layout, ...]]:
    """Of each of these outputs."""
    producers, placed = block.producers(), builder.regions(block)
    found = []
    for name in names:
        node = producers[name]
        if node.target in SOURCES:
            raise IRError(f"block {block.name} returns its own {node.target} {name}")
        index, region = [value.name for value in node.results].index(name), placed.get(node.results[0].name)
        made = builder.ground.layouts(builder.legal(block, node))[1] if region is None else region.results
        found.append(tuple(dict.fromkeys(made[index])))
    return found


def needed_layouts(builder: Builder, block: Graph) -> dict[str, tuple[Layout, ...]]:
    """Of each input what its consumers may need."""
    needs: dict[str, dict[Layout, None]] = {source.result.name: {} for source in block.sources("input")}
    placed = builder.regions(block)
    for node in block.nodes:
        if node.target in SOURCES:
            continue
        region, read = placed.get(node.results[0].name), list[tuple[str | None, tuple[Layout, ...]]]()
        if region is None:
            read += zip(flat_operands(node), builder.ground.layouts(builder.legal(block, node))[0], strict=True)
        elif region.root is node:
            read += ((name, layouts) for name, layouts, _ in region.operands)
        for name, layouts in read:
            if name in needs:
                needs[name].update(dict.fromkeys(layouts))
    return {name: tuple(layouts) or (Layout.replicated(builder.mesh),) for name, layouts in needs.items()}
