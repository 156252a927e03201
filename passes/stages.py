"""A lowered program, cut into pipeline stages.

A lowered program says what one device computes, so it may be cut anywhere: what crosses a cut goes to the device
at the same place of the next stage, whatever its layout, and gradients come back the same way. Two kinds of
values never cross. What depends on no parameter (masks, positions, rotary tables) is computed from the inputs,
which every rank has, by each stage that needs it; so is what depends on parameters alone (their conversions).
A parameter that several stages use stands in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from autopar.ir.calls import pieces
from autopar.ir.errors import IRError, UnsupportedError
from autopar.ir.graph import ASSIGN, SOURCES, Graph, Node, Value, assigned
from autopar.ir.live import live_nodes
from autopar.ir.pipeline import Mark, Stage
from autopar.ir.program import Program

# What a value depends on: nothing but constants, inputs, parameters; or on both, so that it belongs to one stage.
_NOTHING, _INPUTS, _PARAMETERS, _BOTH = 0, 1, 2, 3


def cut(program: Program, marks: Sequence[Mark]) -> tuple[Stage, ...]:
    """``len(marks) + 1`` stages; a stage begins at each mark.

    Requires: marks in the order of the main graph. Raises UnsupportedError where no loss could be
    pipelined so, IRError for a mark that is no place of the graph.
    """
    if program.loss is None:
        raise UnsupportedError("a model without a loss cannot be pipelined: give loss_fn")
    nodes, stage_of = placed(live_for(program.graph, program.loss).nodes, marks)
    depends = dependence(nodes)
    _check_writes(nodes, stage_of, depends)
    values = {value.name: value for node in nodes for value in node.results}
    crossing = _crossing(nodes, stage_of, depends, program.loss, len(marks))
    used = stored(program.graph) | (stored(program.prologue) if program.prologue else set())
    unused = {parameter.fqn for parameter in program.parameters} - used
    found = (
        _stage(program, nodes, stage_of, depends, values, index, crossing, set() if index else unused)
        for index in range(len(marks) + 1)
    )
    return tuple(found)


def even_marks(program: Program, stages: int) -> tuple[Mark, ...]:
    """Marks that cut a program into stages of about as many layers, or operations where there are too few layers.

    Raises UnsupportedError where there is not even one of these for each stage.
    """
    assert program.loss is not None
    graph = live_for(program.graph, program.loss)
    depends = dependence(graph.nodes)
    layers = [
        Mark(node.results[0].name, call) for node in graph.nodes if node.target == "call"
        for call in range(int(str(node.attr("count"))))
    ]  # fmt: skip
    parts = [Mark(node.results[0].name) for node in graph.nodes if belongs(node, depends) and node.target != "call"]
    places = layers
    if len(layers) < stages:
        order = {node.results[0].name: index for index, node in enumerate(graph.nodes)}
        places = sorted((*layers, *parts), key=lambda mark: (order[mark.node], mark.call))
    if len(places) < stages:
        raise UnsupportedError(f"{stages} pipeline stages, but the model has only {len(places)} parts to cut it into")
    return tuple(places[len(places) * stage // stages] for stage in range(1, stages))


def live_for(graph: Graph, output: str) -> Graph:
    """The graph with one output; inputs that it does not need are dropped too."""
    return replace(graph, nodes=live_nodes(graph.nodes, (output,), inputs=False), outputs=(output,))


def placed(nodes: Sequence[Node], marks: Sequence[Mark]) -> tuple[list[Node], list[int]]:
    """The nodes, calls cut where a stage begins inside of them, and the stage in which each stands."""
    made: list[Node] = []
    stage_of: list[int] = []
    stage = 0
    for node in nodes:
        name, offsets = node.results[0].name, [0]
        while stage + len(offsets) - 1 < len(marks) and marks[stage + len(offsets) - 1].node == name:
            offset = marks[stage + len(offsets) - 1].call
            if offset == 0 and offsets == [0]:
                stage += 1
                continue
            if not offsets[-1] < offset < int(str(node.attr("count", 1))):
                raise IRError(f"stage mark {name}/{offset}: there is no such call after the one before")
            offsets.append(offset)
        pieces = _pieces(node, offsets)
        made += pieces
        stage_of += range(stage, stage + len(pieces))
        stage += len(pieces) - 1
    if stage != len(marks):
        raise IRError(f"stage mark {marks[stage]} is no place of the main graph, or out of order")
    return made, stage_of


def _pieces(node: Node, offsets: Sequence[int]) -> list[Node]:
    """A call as several, each from one offset to the next. The last has the names of the whole."""
    if len(offsets) == 1:
        return [node]
    ends = *offsets[1:], int(str(node.attr("count")))
    return pieces(node, [end - start for start, end in zip(offsets, ends, strict=True)], ".part")


def dependence(nodes: Sequence[Node]) -> dict[str, int]:
    """What each value depends on."""
    known: dict[str, int] = {}
    for node in nodes:
        if node.target == "input":
            found = _INPUTS
        elif node.target == "param":
            found = _PARAMETERS
        elif node.target in ("call", ASSIGN):
            found = _BOTH
        else:
            found = _NOTHING
            for name in node.uses():
                found |= known[name]
        known.update((value.name, found) for value in node.results)
    return known


def belongs(node: Node, depends: dict[str, int]) -> bool:
    """Whether the node stands in one stage; all others may be computed anywhere."""
    return depends[node.results[0].name] == _BOTH


def depends_on_inputs(node: Node, depends: dict[str, int]) -> bool:
    return bool(depends[node.results[0].name] & _INPUTS)


def _crossing(
    nodes: Sequence[Node], stage_of: Sequence[int], depends: dict[str, int], loss: str, last: int
) -> list[tuple[str, ...]]:
    """For each boundary the values that go over it, in the order in which they are made."""
    made: dict[str, int] = {}
    used: dict[str, int] = {}
    for node, stage in zip(nodes, stage_of, strict=True):
        if belongs(node, depends):
            made.update((value.name, stage) for value in node.results)
            used.update((name, stage) for name in node.uses() if name in made)
    if made.get(loss) != last:
        raise UnsupportedError("the loss is not made in the last stage; begin the stages earlier")
    return [
        tuple(name for name, stage in made.items() if stage <= boundary < used.get(name, stage))
        for boundary in range(last)
    ]


def _pick(
    nodes: Sequence[Node], stage_of: Sequence[int], depends: dict[str, int], index: int, outputs: Sequence[str],
    received: set[str],
) -> list[Node]:  # fmt: skip
    """The nodes of one stage with all that they need but what is received."""
    wanted, kept = set(outputs) - received, []
    for node, stage in zip(reversed(nodes), reversed(stage_of), strict=True):
        here = stage == index or not belongs(node, depends)
        if here and any(value.name in wanted for value in node.results):
            kept.append(node)
            wanted.update(name for name in node.uses() if name not in received)
    return kept[::-1]


def _stage(
    program: Program, nodes: Sequence[Node], stage_of: Sequence[int], depends: dict[str, int], values: dict[str, Value],
    index: int, crossing: Sequence[tuple[str, ...]], unused: AbstractSet[str],
) -> Stage:  # fmt: skip
    """``unused``: parameters that nothing uses, where the stage is to hold them."""
    receives = crossing[index - 1] if index else ()
    sends = crossing[index] if index < len(crossing) else ()
    assert program.loss is not None
    outputs = sends or (program.loss,)
    own = _pick(nodes, stage_of, depends, index, outputs, set(receives))
    entering = [Node(results=(values[name],), target="input", attrs=(("name", name),)) for name in receives]
    called = {str(node.attr("block")) for node in own if node.target == "call"}
    graph = replace(
        program.graph, name=f"stage{index}", nodes=(*entering, *own), outputs=outputs,
        blocks=tuple(block for block in program.graph.blocks if block.name in called),
    )  # fmt: skip
    prologue = _prologue(program, graph)
    held = stored(graph) | (stored(prologue) if prologue else set())
    return Stage(
        program=replace(
            program, graph=graph, prologue=prologue, loss=None if sends else program.loss,
            parameters=tuple(p for p in program.parameters if p.fqn in held or p.fqn in unused),
            recompute={name: how for name, how in program.recompute.items() if name in called},
        ),
        receives=receives, sends=sends,
    )  # fmt: skip


def _prologue(program: Program, graph: Graph) -> Graph | None:
    """The part of the prologue whose results the stage takes."""
    if program.prologue is None:
        return None
    taken = {str(node.attr("name")) for node in graph.sources("input")}
    outputs = tuple(name for name in program.prologue.outputs if name in taken)
    nodes = live_nodes(program.prologue.nodes, outputs, inputs=False)
    return replace(program.prologue, nodes=nodes, outputs=outputs) if outputs else None


def stored(graph: Graph) -> set[str]:
    """Names of the parameters, buffers and constants that a graph and its calls use."""
    names = {
        str(node.attr("fqn")) for node in graph.nodes if node.target in SOURCES and node.target != "input"
    }
    slots = {
        block.name: [int(str(s.attr("slot"))) for s in block.nodes if s.target in SOURCES and s.target != "input"]
        for block in graph.blocks
    }
    for node in graph.nodes:
        params = node.attr("params") if node.target == "call" else None
        for call in params if isinstance(params, tuple) else ():
            assert isinstance(call, tuple)
            names.update(str(call[slot]) for slot in slots[str(node.attr("block"))])
    return names


def _check_writes(nodes: Sequence[Node], stage_of: Sequence[int], depends: dict[str, int]) -> None:
    """A buffer that changes is used by one stage only."""
    producers = {value.name: node for node in nodes for value in node.results}
    written = {
        buffer: stage for node, stage in zip(nodes, stage_of, strict=True) if node.target == ASSIGN
        for buffer, _ in assigned(node)
    }  # fmt: skip
    for node, stage in zip(nodes, stage_of, strict=True):
        for name in node.uses():
            if belongs(node, depends) and written.get(name, stage) != stage:
                raise UnsupportedError(
                    f"buffer {producers[name].attr('fqn')} changes in one pipeline stage and is read in another, at "
                    f"{node.source}"
                )
